"""The engine `llama-server`."""
