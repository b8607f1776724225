"""Which KV blocks this worker holds, and their publication."""
