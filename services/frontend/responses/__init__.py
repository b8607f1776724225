"""The stateful side of the Responses API: what is kept, what runs without its client, and the WebSocket."""
