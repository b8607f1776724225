"""Budgets of reasoning: the thoughts of a turn are counted, and ended at the limit."""
