"""Errors that end a command; their text is for the user."""


class CommandError(Exception):
    """The command cannot do what it is for."""

    status = 1


class UsageError(CommandError):
    """The command line is wrong."""

    status = 2
