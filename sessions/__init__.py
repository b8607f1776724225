"""Random sessions of agents through any chat template, as real clients send them: for the tests of
prompts and of the ledger. Also finds published templates."""
