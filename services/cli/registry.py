"""Finds commands by name: in a table, and among the entry points of `turnwire.commands`. Imports a
command when it is called."""

import pkgutil
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from msgspec import Struct

from services.cli.common import CommandError
from services.runtime.config.base import Config
from services.runtime.config.command_line import CommandFunction

GROUP = "turnwire.commands"
BUILT_IN: Mapping[str, tuple[str, str]] = {
    "up": (
        "services.cli.up.command:COMMAND",
        "start everything on this machine and print how to use it",
    ),
    "serve": (
        "services.cli.serve:COMMAND",
        "run one stage: frontend, preprocessor, worker or parser",
    ),
    "connect": (
        "services.cli.connect.command:COMMAND",
        "set up an agent client for a running server",
    ),
    "catalog": ("services.cli.connect.catalog:COMMAND", "write the model catalogue for Codex"),
    "tap": (
        "turnwire_tools.tap.command:COMMAND",
        "watch the bus: a turn, a subject or everything, decoded",
    ),
    "inspect": (
        "turnwire_tools.inspector.command:COMMAND",
        "show turns and sessions in a web page, live or recorded",
    ),
    "trajectories": (
        "turnwire_tools.trajectories.command:COMMAND",
        "write sessions as training samples of token ids",
    ),
    "behaviour": (
        "turnwire_tools.behaviour:COMMAND",
        "run the same tasks on two servers, and test for a difference",
    ),
    "replay": (
        "turnwire_tools.replay.command:COMMAND",
        "play recorded or written turns as a client of the HTTP APIs",
    ),
    "doctor": ("services.cli.doctor.command:COMMAND", "check this machine, the bus and the model"),
    "check": (
        "services.cli.check.command:COMMAND",
        "check the settings and the model, before the services start",
    ),
    "config": (
        "services.cli.commands.show_config:COMMAND",
        "show every setting, its value and its origin",
    ),
    "health": ("services.cli.commands.health:COMMAND", "check whether a process is live or ready"),
    "parse": ("turnwire_tools.parse:COMMAND", "turn model output on stdin into events"),
    "key": (
        "services.cli.commands.keys:COMMAND",
        "make an API key, and put its hash into the key file; list and remove keys",
    ),
    "secrets": (
        "services.cli.commands.make_secrets:COMMAND",
        "make the passwords and keys of a deployment",
    ),
    "buckets": (
        "services.cli.commands.make_buckets:COMMAND",
        "create the buckets that services share on the bus",
    ),
    "demo-model": ("turnwire_tools.script.demo_model:COMMAND", "make the demo model's directory"),
}
"""The commands of this distribution: their places and summaries. A clone that was never installed
has no entry points, and an overview that imports all commands takes two seconds. Other packages
cannot replace these."""


BUS_SETTINGS = ("nats_url", "nats_user", "nats_password_file")
COMMON_SETTINGS = (
    "model",
    "served_model_name",
    "engine",
    "engine_args",
    "engine_url",
    "max_model_len",
    "host",
    "port",
    "api_keys_file",
    "nats_url",
    "chat_template",
    "tool_call_parser",
)
"""The settings that most users need. `--help` has to fit a page; `--help all` shows the others."""


class Command(Struct, frozen=True):
    """A command of `turnwire`. An entry point names an object of this type."""

    function: CommandFunction
    settings: Sequence[type[Config]] = ()
    """Each setting of these is also a flag. If there are any, the first argument of the function is
    their `Sources`."""
    without: Sequence[str] = ()
    """Names of settings that are not flags."""
    essential: Sequence[str] = ()
    """Names of the settings that `--help` shows; default: all. `--help all` shows the others."""
    passes_arguments: bool = False
    """The function gets the arguments as they are, and handles signals itself."""


def load_command(name: str) -> Command | None:
    """The command called `name`; None if there is none.

    Raises CommandError if another package's command cannot be imported.
    """
    if name in BUILT_IN:  # without a search in all installed packages
        command: Command = pkgutil.resolve_name(BUILT_IN[name][0])
        return command
    entry = _entry_points().get(name)
    return None if entry is None else _load(entry)


def summaries() -> dict[str, str]:
    """What each command does, by name; for a command of another package, the first line of its
    help, or the error of its import."""
    texts = {name: text for name, (_, text) in BUILT_IN.items()}
    for name, entry in sorted(_entry_points().items()):
        try:
            texts[name] = (_load(entry).function.__doc__ or "").strip().partition("\n")[0]
        except CommandError as error:
            texts[name] = str(error)
    return texts


def _entry_points() -> dict[str, EntryPoint]:
    """The entry points of other packages' commands."""
    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in BUILT_IN}


def _load(entry: EntryPoint) -> Command:
    try:
        command: Any = entry.load()
    except (ImportError, AttributeError) as error:
        raise CommandError(f"cannot be imported: {error}") from error
    if not isinstance(command, Command):
        raise CommandError(f"{entry.value} is not a {Command.__module__}.{Command.__name__}")
    return command
