"""Renders answers of the Responses API: event streams, Response documents and compactions.

Pure.
"""
