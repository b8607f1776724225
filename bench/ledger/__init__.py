"""Plays agent sessions through the ledger: measures which tokens an engine has to compute again."""
