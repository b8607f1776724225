"""What each agent client must be told to work with a server: one pure module per client, `plan(Target) -> Plan`."""
