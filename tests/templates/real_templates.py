"""The published templates that the tests run with."""

from bench.ledger.published import published

REAL_TEMPLATES = published()
"""File by name; none where no package with templates is installed."""
