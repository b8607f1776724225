"""Runs the program `turnwire`: finds the command and calls it.

A command is a function, and its parameters are the flags. It is imported when it is called, so that
`turnwire health` starts quickly. Errors that a user can cause (CommandError, TurnwireError,
OSError) are one line on stderr; any other exception is a bug and keeps its traceback. Exit status:
0 success, 1 failure, 2 wrong usage or configuration, 130 interrupted.
"""

import sys
from collections.abc import Sequence

try:
    from schemas.errors import TurnwireError
    from services import __version__
    from services.cli.common import CommandError
    from services.cli.registry import load_command, summaries
    from services.cli.signals import time_limit
    from services.runtime.config.command_line import CLEAN, FAILURE, INTERRUPTED, USAGE, run_command
    from services.runtime.config.masking import mask_passwords
    from services.runtime.config.names import nearest
except KeyboardInterrupt:  # the imports take most of the time of a short command
    sys.exit(130)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command. Returns its exit status."""
    if argv is None:
        argv = sys.argv[1:]
    name, *arguments = argv or [""]
    try:
        if name == "":
            print(usage(), file=sys.stderr)
            return USAGE
        if name in ("-h", "--help", "help"):
            print(usage())
            return CLEAN
        if name in ("--version", "version"):
            print(__version__)
            return CLEAN
        return _run(name, arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `turnwire tap | head`; a service that cannot write its log has failed
        sys.stderr.close()
        return FAILURE if name == "serve" else CLEAN
    except CommandError as error:
        print(f"turnwire {name}: {mask_passwords(error)}", file=sys.stderr)
        return error.status
    except (TurnwireError, OSError) as error:
        print(f"turnwire {name}: {mask_passwords(error)}", file=sys.stderr)
        return FAILURE


def _run(name: str, arguments: Sequence[str]) -> int:
    """Runs the command with this name. Returns its exit status."""
    with time_limit():
        command = load_command(name)
        if command is None:
            near = nearest(name, summaries())
            print(f"turnwire: no command {name}{near}\n\n{usage()}", file=sys.stderr)
            return USAGE
        if not command.passes_arguments:
            return run_command(
                command.function,
                f"turnwire {name}",
                arguments,
                *command.settings,
                without=command.without,
                essential=command.essential,
            )
    return command.function(arguments)


def usage() -> str:
    """The overview of all commands."""
    texts = summaries()
    width = max(map(len, texts))
    commands = "\n".join(f"  {name:<{width}}  {text}" for name, text in texts.items())
    return (
        f"usage: turnwire COMMAND [flags]\n\n{commands}\n\n"
        "turnwire COMMAND --help shows the flags of a command."
    )


# Required: TensorRT-LLM's MPI workers and vLLM's processes import this module again.
if __name__ == "__main__":
    sys.exit(main())
