"""vLLM behind Turnwire, beside vLLM behind its own server."""
