"""The OpenAI Responses API.

A request goes from `server` (HTTP) or `live.socket` (WebSocket) to `intake`, which fetches what the request names from
`store`; `request` converts it to a conversation, the pipeline serves the turn, and `answer` renders it. `dialect` joins
the pure parts (`wire`, `request`, `answer`, `sealing`).
"""
