"""Finds the earlier turns of a conversation among the ledger's entries, and restores them as the
model wrote them."""
