"""Keeps what clients may refer to later: responses, and the replies of message threads."""
