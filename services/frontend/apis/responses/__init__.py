"""Serves OpenAI's Responses API.

`dialect` is the pure part: `request` converts a request to a conversation, `render` makes the
answer, and the files `wire*` have the types of both. `routes` (HTTP) and `state/socket` (WebSocket)
pass requests to `state/request_reader`, which fetches from the store what a request refers to;
`state/stored_request` stores the response.
"""
