"""Turns played through the HTTP stack without a model: written by hand, or recorded on a live bus
(docs/replay.md)."""
