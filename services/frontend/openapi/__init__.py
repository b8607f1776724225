"""Our own OpenAPI document, from the types of the wire. Pure."""
