"""`turnwire`: one command line for everything that a person does with Turnwire.

Each command is a module with `main(argv) -> status`, imported when it is called: `turnwire health` must not pay for
what `turnwire up` needs. Status: 0 clean, 1 failure, 2 usage or configuration.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence

from services.runtime.config_sources import nearest

COMMANDS: Mapping[str, tuple[str, str]] = {
    "up": ("services.cli.up", "start everything on this machine and say how to use it"),
    "serve": ("services.cli.serve", "run one stage: frontend, preprocessor, worker or parser"),
    "connect": ("services.cli.connect", "set up Claude Code, Codex, OpenClaw or opencode for a running server"),
    "catalog": ("services.cli.catalog", "write the model catalogue that Codex wants"),
    "tap": ("services.cli.tap", "watch the bus: a turn, a subject or everything, decoded"),
    "replay": ("services.cli.replay.command", "play recorded or written turns as a client, and show what it sees"),
    "doctor": ("services.cli.doctor", "check this machine, the bus and the model; a report to paste"),
    "config": ("services.cli.show_config", "every setting, its value and where the value comes from"),
    "health": ("services.cli.health", "ask a running process whether it is alive or ready"),
    "parse": ("services.cli.parse", "turn model output on stdin into events"),
    "key": ("services.cli.make_key", "make an API key, and put its hash into the key file"),
    "secrets": ("services.cli.make_secrets", "make the passwords and keys of a deployment"),
    "demo-model": ("services.cli.make_demo_model", "make the demo model's directory"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if arguments[0] in ("--version", "version"):
        from importlib.metadata import version

        print(version("turnwire"))
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
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
    return f"usage: turnwire COMMAND [flags]\n\n{commands}\n\nturnwire COMMAND --help tells a command's flags."


if __name__ == "__main__":
    sys.exit(main())
