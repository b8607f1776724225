"""An engine for Turnwire that runs GGUF models with llama.cpp."""
