"""Serves OpenAI's legacy Completions (docs/chat.md)."""
