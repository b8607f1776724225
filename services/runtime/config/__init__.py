"""Configuration: the settings of each service, where their values come from, and the command
line."""
