"""Sets up agent clients for a running server."""
