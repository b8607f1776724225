"""Reads the input items of a request to the messages of a conversation."""
