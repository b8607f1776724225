"""turnwire connect: settings of agent clients for a running server."""
