"""Finds the published templates for the tests."""

from bench.ledger.published import published

REAL_TEMPLATES = published()
"""File by name; none where no package with templates is installed."""
