"""Anthropic Messages: its requests as conversations, turns as its streams and documents. Pure."""
