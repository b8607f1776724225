"""Clients of the HTTP APIs: they write the request of a turn, and read its answer."""
