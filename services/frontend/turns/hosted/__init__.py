"""Answers of several turns: between two of them, this server runs tools (`hosted_turns.py`).

`services.frontend.hosted` has the tools and their providers.
"""
