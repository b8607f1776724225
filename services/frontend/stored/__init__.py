"""Keeps what later requests need: responses and the replies of message threads, to which clients
refer, and what clients do not see of answers."""
