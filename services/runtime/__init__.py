"""What every service shares: configuration, the bus, its streams, and being a process."""
