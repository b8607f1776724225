"""The four services, what they share, and the command line."""
