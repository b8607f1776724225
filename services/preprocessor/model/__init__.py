"""Loads a model for the preprocessor: its setup, family, thought budget and ledger."""
