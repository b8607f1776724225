"""Tools beside the services: programs that read the bus or speak the HTTP APIs, and the engine
without a model."""
