"""The program `turnwire`: finds the command and runs it.

Each command is a module with `main(argv) -> status`, imported when it is called, so that `turnwire health` starts
quickly. Status: 0 success, 1 failure, 2 wrong usage or configuration.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence

from services import __version__
from services.runtime.config.loader import nearest

COMMANDS: Mapping[str, tuple[str, str]] = {
    "up": ("services.cli.up.command", "start everything on this machine and print how to use it"),
    "serve": ("services.cli.serve", "run one stage: frontend, preprocessor, worker or parser"),
    "connect": ("services.cli.connect.command", "set up an agent client for a running server"),
    "catalog": ("services.cli.connect.catalog", "write the model catalogue for Codex"),
    "tap": ("services.cli.tap.command", "watch the bus: a turn, a subject or everything, decoded"),
    "trajectories": ("services.cli.trajectories.command", "write sessions as training samples of token ids"),
    "replay": ("services.cli.replay.command", "play recorded or written turns as a client of the HTTP APIs"),
    "doctor": ("services.cli.doctor.command", "check this machine, the bus and the model"),
    "config": ("services.cli.show_config", "show every setting, its value and its origin"),
    "health": ("services.cli.health", "check whether a process is live or ready"),
    "parse": ("services.cli.parse", "turn model output on stdin into events"),
    "key": ("services.cli.make_key", "make an API key, and put its hash into the key file"),
    "secrets": ("services.cli.make_secrets", "make the passwords and keys of a deployment"),
    "demo-model": ("services.cli.demo.command", "make the demo model's directory"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if arguments[0] in ("--version", "version"):
        print(__version__)
        return 0
    if arguments[0] not in COMMANDS:
        print(f"turnwire: no command {arguments[0]}{nearest(arguments[0], COMMANDS)}\n\n{usage()}", file=sys.stderr)
        return 2
    command = importlib.import_module(COMMANDS[arguments[0]][0])
    try:
        return int(command.main(arguments[1:]))
    except KeyboardInterrupt:
        return 1
    except BrokenPipeError:  # `turnwire tap | head`
        sys.stderr.close()
        return 0


def usage() -> str:
    """The overview of all commands."""
    from services.cli.connect.client import client_names  # no other command needs it

    width = max(map(len, COMMANDS))
    texts = {name: text for name, (_, text) in COMMANDS.items()}
    texts["connect"] += f": {', '.join(client_names())}"
    commands = "\n".join(f"  {name:<{width}}  {text}" for name, text in texts.items())
    return f"usage: turnwire COMMAND [flags]\n\n{commands}\n\nturnwire COMMAND --help shows the flags of a command."


if __name__ == "__main__":
    sys.exit(main())
