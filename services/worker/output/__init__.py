"""The way of output tokens in a worker: from the engine to the parser shards."""
