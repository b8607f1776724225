"""The agent clients: one module each, with a `services.cli.connect.client.AgentClient` named
`CLIENT`."""
