"""Compares two prompts of a session: where they differ first, what that costs, and why. Pure."""
