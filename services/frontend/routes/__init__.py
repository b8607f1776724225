"""Handlers, by what they serve. `turns` serves every dialect."""
