"""Encodes and decodes tokens exactly as the model's tokenizer does. Pure."""
