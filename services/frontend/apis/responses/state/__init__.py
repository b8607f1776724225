"""Adds state to the Responses API: a layer around the stateless part, which does not depend on it.

Before a turn, `expand` completes a request's input; after the turn, `recording` makes the record
for the store.
"""
