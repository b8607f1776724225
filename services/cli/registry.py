"""Finds commands by name: entry points of the group `turnwire.commands`. A command is imported when it is called."""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from msgspec import Struct

from services.cli.common import CommandError
from services.runtime.config.settings import Config

GROUP = "turnwire.commands"
BUILT_IN: Mapping[str, tuple[str, str]] = {
    "up": ("services.cli.up.command:COMMAND", "start everything on this machine and print how to use it"),
    "serve": ("services.cli.main:serve", "run one stage: frontend, preprocessor, worker or parser"),
    "connect": ("services.cli.connect.command:COMMAND", "set up an agent client for a running server"),
    "catalog": ("services.cli.connect.catalog:COMMAND", "write the model catalogue for Codex"),
    "tap": ("turnwire_tools.tap.command:COMMAND", "watch the bus: a turn, a subject or everything, decoded"),
    "inspect": (
        "turnwire_tools.inspector.command:COMMAND",
        "show turns and sessions in a web page, live or recorded",
    ),
    "trajectories": (
        "turnwire_tools.trajectories.command:COMMAND",
        "write sessions as training samples of token ids",
    ),
    "replay": (
        "turnwire_tools.replay.command:COMMAND",
        "play recorded or written turns as a client of the HTTP APIs",
    ),
    "doctor": ("services.cli.doctor.command:COMMAND", "check this machine, the bus and the model"),
    "check": (
        "services.cli.up.check:COMMAND",
        "check the settings and the model, before the services start",
    ),
    "config": ("services.cli.commands.show_config:COMMAND", "show every setting, its value and its origin"),
    "health": ("services.cli.commands.health:COMMAND", "check whether a process is live or ready"),
    "parse": ("turnwire_tools.parse:COMMAND", "turn model output on stdin into events"),
    "key": ("services.cli.commands.make_key:COMMAND", "make an API key, and put its hash into the key file"),
    "secrets": ("services.cli.commands.make_secrets:COMMAND", "make the passwords and keys of a deployment"),
    "buckets": ("services.cli.commands.make_buckets:COMMAND", "create the buckets that services share on the bus"),
    "demo-model": ("turnwire_tools.script.demo_model:COMMAND", "make the demo model's directory"),
}
"""Where the commands of this distribution are, and what they do: a clone that was never installed has no entry points,
and an overview that imports all of them takes two seconds. No package can replace these."""


class Command(Struct, frozen=True):
    """A command of `turnwire`, which an entry point names."""

    function: Callable[..., int]
    """Its parameters are the flags and its docstring is the help; it returns the exit status."""
    settings: Sequence[type[Config]] = ()
    """Each setting in them is a flag, too. With any, the first argument of the function is their `Sources`."""
    without: Sequence[str] = ()
    """Names of settings that are not flags."""


def load_command(name: str) -> Command | None:
    """The command called `name`; None if there is none. Raises CommandError if another package's cannot be used."""
    if name in BUILT_IN:  # without a search in all installed packages
        command: Command = pkgutil.resolve_name(BUILT_IN[name][0])
        return command
    entry = _added().get(name)
    return None if entry is None else _load(entry)


def summaries() -> dict[str, str]:
    """What each command does, by name; of another package's, the first line of its help, or why it has none."""
    texts = {name: text for name, (_, text) in BUILT_IN.items()}
    for name, entry in sorted(_added().items()):
        try:
            texts[name] = (_load(entry).function.__doc__ or "").strip().partition("\n")[0]
        except CommandError as error:
            texts[name] = str(error)
    return texts


def _added() -> dict[str, EntryPoint]:
    """The commands of other packages."""
    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in BUILT_IN}


def _load(entry: EntryPoint) -> Command:
    try:
        command: Any = entry.load()
    except (ImportError, AttributeError) as error:
        raise CommandError(f"cannot be imported: {error}") from error
    if not isinstance(command, Command):
        raise CommandError(f"{entry.value} is not a {Command.__module__}.{Command.__name__}")
    return command
