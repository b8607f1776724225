"""Stored chat completions: `store: true`, and the paths that list, show, change and delete them."""
