"""Rollouts, for those who train (docs/rollouts.md)."""
