"""Responses that run or are sent outside of one POST: in the background, over WebSockets, and as replayed streams."""
