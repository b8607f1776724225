"""turnwire tap: messages on the bus, decoded."""
