"""Checks settings and models before the services start."""
