"""Readers of call bodies, each for one way of writing arguments."""
