"""The engines, each in its own package."""
