"""Tracks and publishes the KV blocks that a worker holds."""
