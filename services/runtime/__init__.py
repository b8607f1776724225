"""The parts that all services share: configuration, the bus, its streams, and the process."""
