"""Agent sessions through the ledger: how much of what an engine has already computed a next prompt begins with."""
