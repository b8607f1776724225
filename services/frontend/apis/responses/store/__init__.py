"""Stored responses: records, chains, lists of input items, and the stores that keep them."""
