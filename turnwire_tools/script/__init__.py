"""The script engine: a rule-based agent or written output in place of a model."""
