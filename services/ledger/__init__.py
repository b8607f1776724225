"""The turn ledger: finds and compares earlier turns, so that a prompt holds their original tokens.
Pure."""
