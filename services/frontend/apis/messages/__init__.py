"""Serves the Anthropic Messages API: converts its requests to conversations, and turns to its
streams and documents."""
