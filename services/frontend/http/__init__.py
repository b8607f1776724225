"""Serves HTTP independently of any API: connections, authentication, limits, TLS, event streams."""
