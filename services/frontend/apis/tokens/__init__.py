"""Tokens of text and text of tokens."""
