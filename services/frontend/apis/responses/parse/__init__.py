"""Converts the body of a Responses request to a `Conversation`. Pure.

`body` decodes it; `tools` and `items` read its tools and items, and `conversation` joins them.
"""
