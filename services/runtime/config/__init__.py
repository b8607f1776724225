"""Configuration: the settings of each service, where their values come from, and the command
line."""

from services.runtime.config.settings import *  # noqa: F403  (all of them, under this name)
