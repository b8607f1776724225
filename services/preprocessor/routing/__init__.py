"""Chooses a turn's worker by KV cache and load, and sends the turn there."""
