"""Chooses a turn's worker by KV cache and load, and prefills what comes next."""
