"""Keeps what clients may refer to later: responses, so far."""
