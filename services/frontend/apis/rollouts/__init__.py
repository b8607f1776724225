"""The API of rollouts, for trainers (docs/rollouts.md)."""
