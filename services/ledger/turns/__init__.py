"""Turns of the model: their keys, the ids and seals in them, and the text and parts of their
tokens."""
