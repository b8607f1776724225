"""Serves responses over WebSockets."""
