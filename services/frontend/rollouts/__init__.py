"""Rollouts: their store, and the recording of their turns (docs/rollouts.md)."""
