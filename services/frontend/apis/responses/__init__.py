"""Serves OpenAI's Responses API.

`request` is the pure part: `parse` converts a request to a conversation, `render` makes the answer,
and the files `wire*` have the types of both. `routes` (HTTP) and `state/socket/` (WebSocket)
pass requests to `state/request_reader`, which fetches from the store what a request refers to;
`state/accepted_request` has what stores the response.
"""
