"""Serves OpenAI's Responses API.

`dialect` is the pure part: `request` converts a request to a conversation, `render` makes the
answer, and the files `wire*` have the types of both. `routes` (HTTP) and `state/socket` (WebSocket)
pass requests to `state/intake`, which fetches from the store what a request refers to;
`state/recording` stores the response.
"""
