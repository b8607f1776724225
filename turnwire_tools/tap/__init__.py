"""`turnwire tap`: shows and records the messages on the bus."""
