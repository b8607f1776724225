"""The program `turnwire`: finds the command and runs it.

Each command is a function whose parameters are its flags. It is imported when it is called, so that `turnwire health`
starts quickly. Errors that a user can cause are one line on stderr (CommandError, TurnwireError, OSError); any other
exception is a bug and keeps its traceback. Status: 0 success, 1 failure, 2 wrong usage or configuration.
"""

import importlib
import pkgutil
import sys
from collections.abc import Mapping, Sequence

from schemas.errors import TurnwireError
from services import __version__
from services.cli.errors import CommandError
from services.runtime import config
from services.runtime.config import STAGES
from services.runtime.config.command_line import run_command
from services.runtime.config.loader import mask_passwords, nearest

COMMANDS: Mapping[str, tuple[str, str]] = {
    "up": ("services.cli.up.command:up", "start everything on this machine and print how to use it"),
    "serve": ("services.cli.main:serve", "run one stage: frontend, preprocessor, worker or parser"),
    "connect": ("services.cli.connect.command:connect", "set up an agent client for a running server"),
    "catalog": ("services.cli.connect.catalog:catalog", "write the model catalogue for Codex"),
    "tap": ("turnwire_tools.tap.command:tap", "watch the bus: a turn, a subject or everything, decoded"),
    "inspect": ("turnwire_tools.inspector.command:inspect", "show turns and sessions in a web page, live or recorded"),
    "trajectories": (
        "turnwire_tools.trajectories.command:trajectories",
        "write sessions as training samples of token ids",
    ),
    "replay": ("turnwire_tools.replay.command:replay", "play recorded or written turns as a client of the HTTP APIs"),
    "doctor": ("services.cli.doctor.command:examine", "check this machine, the bus and the model"),
    "check": ("services.cli.commands.check:check", "check the settings and the model, before the services start"),
    "config": ("services.cli.commands.show_config:show", "show every setting, its value and its origin"),
    "health": ("services.cli.commands.health:check", "check whether a process is live or ready"),
    "parse": ("turnwire_tools.parse:parse", "turn model output on stdin into events"),
    "key": ("services.cli.commands.make_key:make", "make an API key, and put its hash into the key file"),
    "secrets": ("services.cli.commands.make_secrets:make", "make the passwords and keys of a deployment"),
    "buckets": ("services.cli.commands.make_buckets:make", "create the buckets that services share on the bus"),
    "demo-model": ("turnwire_tools.script.demo_model:make", "make the demo model's directory"),
}
_SERVICES = (config.FrontendConfig, config.WorkerConfig, config.PreprocessorConfig, config.ParserConfig)
SETTINGS: Mapping[str, Sequence[type[config.Config]]] = {
    "up": (config.UpConfig, *_SERVICES),
    "buckets": (config.BusConfig, config.BucketsConfig),
    "tap": (config.BusConfig,),
    "inspect": (config.BusConfig,),
    "trajectories": (config.BusConfig,),
    "doctor": (config.BusConfig, *_SERVICES),
    "check": tuple(STAGES.values()),
    "config": (*STAGES.values(), config.UpConfig),
    "health": tuple(STAGES.values()),
}
"""The settings that a command reads: each is a flag."""
NOT_FOR_UP = ("id", "metrics_host", "metrics_port", "log_format")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    name, *arguments = (sys.argv[1:] if argv is None else argv) or [""]
    if name in ("", "-h", "--help", "help"):
        print(usage(), file=sys.stdout if name else sys.stderr)
        return 0 if name else 2
    if name in ("--version", "version"):
        print(__version__)
        return 0
    if name not in COMMANDS:
        print(f"turnwire: no command {name}{nearest(name, COMMANDS)}\n\n{usage()}", file=sys.stderr)
        return 2
    if name == "serve":
        return serve(arguments)
    try:
        function = pkgutil.resolve_name(COMMANDS[name][0])
        without = NOT_FOR_UP if name == "up" else ()
        return run_command(function, f"turnwire {name}", arguments, *SETTINGS.get(name, ()), without=without)
    except KeyboardInterrupt:
        return 1
    except BrokenPipeError:  # `turnwire tap | head`
        sys.stderr.close()
        return 0
    except (CommandError, TurnwireError, OSError) as error:
        print(f"turnwire {name}: {mask_passwords(error)}", file=sys.stderr)
        return error.status if isinstance(error, CommandError) else 1


def serve(argv: Sequence[str]) -> int:
    """Runs the stage in the first argument with the other arguments as its flags."""
    stage = argv[0] if argv else ""
    if stage in ("-h", "--help"):
        print(f"usage: turnwire serve {{{','.join(STAGES)}}} [flags]\n\nturnwire serve STAGE --help shows the flags.")
        return 0
    if stage not in STAGES:
        print(f"turnwire serve: the stage is one of {', '.join(STAGES)}{nearest(stage, STAGES)}", file=sys.stderr)
        return 2
    return int(importlib.import_module(f"services.{stage}.__main__").main(argv[1:]))


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
