"""The demo model's files."""
