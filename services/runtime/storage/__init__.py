"""Values that outlive a process: buckets of NATS, and the sealing of what clients keep."""
