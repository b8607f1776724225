"""The worker: one engine, token ids in and token ids out."""
