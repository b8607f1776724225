"""The engines, each in a package of its own."""
