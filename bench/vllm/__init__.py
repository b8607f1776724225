"""Compares Turnwire with vLLM and vLLM's own server."""
