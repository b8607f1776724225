"""Measures the cost of a serving path. Run from the repository's root: `python -m bench.suite`."""
