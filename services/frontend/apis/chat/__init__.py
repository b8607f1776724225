"""OpenAI Chat Completions (docs/chat.md)."""
