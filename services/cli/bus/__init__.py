"""The messages and turns on the bus, for the commands that follow or record them."""
