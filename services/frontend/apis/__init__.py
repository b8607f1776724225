"""Serves the HTTP APIs: each package converts one API to and from the common conversations and
events."""
