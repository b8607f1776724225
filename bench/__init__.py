"""What a serving path costs: load, clocks and tables. Runs from the repository's root: `python -m bench.load`."""
