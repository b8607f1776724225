"""Serves OpenAI's Responses API.

`dialect` is the pure part: `request` converts a request to a conversation, `render` makes the
answer, and the files `wire*` have the types of both. `state` is a layer around it: `server` (HTTP)
and `socket` (WebSocket) pass requests to `intake`, which fetches from `store` what a request refers
to; `recording` stores the response.
"""
