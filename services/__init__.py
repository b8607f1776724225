"""The four services, what they share, and the command line."""

__version__ = "0.1.0"
