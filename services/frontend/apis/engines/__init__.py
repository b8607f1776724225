"""The engines of a model, for operators: pauses, and weights that change (docs/operations.md)."""
