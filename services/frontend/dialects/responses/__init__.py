"""The OpenAI Responses API (apis.md B)."""
