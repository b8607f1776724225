"""Which processes are there: heartbeats, their signatures, and the registry made of them."""
