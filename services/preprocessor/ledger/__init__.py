"""The ledger in a preprocessor: which turns a model has, kept up to date, tried."""
