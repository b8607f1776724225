"""Tracks the living processes of a deployment: heartbeats, their signatures, and the registry."""
