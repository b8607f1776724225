"""The HTTP APIs, one package each, over one conversation and event model."""
