"""Serves OpenAI's Chat Completions (docs/chat.md)."""
