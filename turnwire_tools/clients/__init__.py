"""The HTTP APIs as a client sees them: the request of a turn, and a reader of the answer."""
