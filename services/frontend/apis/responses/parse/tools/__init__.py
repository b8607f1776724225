"""Reads the tools of a request and its `tool_choice`."""
