"""HTTP independent of any API: connections, authentication, limits, TLS, event streams."""
