"""turnwire doctor: checks of this machine, the bus and the model."""
