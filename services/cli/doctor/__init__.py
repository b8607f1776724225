"""Checks this machine, the bus and the model."""
