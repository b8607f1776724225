"""OpenAI legacy Completions (docs/chat.md)."""
