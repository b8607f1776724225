"""One folder per API, each a pure function over the one conversation and event model."""
