"""The four services, what they share, and the command line."""

__version__ = "0.2.0"
