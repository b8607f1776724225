"""`turnwire connect CLIENT`: settings with which an agent client works with a running server.

Windows and limits are the server's own. They are printed; with --write they are merged into the client's settings,
after a copy of those was made.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence

from services.cli.clients import claude, codex, openclaw, opencode
from services.cli.clients.base import BadRequest, Plan, Settings, Target
from services.cli.served import DEFAULT_URL, CannotAsk, ask
from services.cli.settings_file import Unreadable, text_of, write
from services.runtime.config_flags import parse_arguments

CLIENTS: Mapping[str, Callable[[Target], Plan]] = {
    "claude": claude.plan,
    "codex": codex.plan,
    "openclaw": openclaw.plan,
    "opencode": opencode.plan,
}


def main(argv: Sequence[str]) -> int:
    """Prints or writes the settings; status 1 where no server answers or a file was left alone, 2 for what a client
    does not have."""
    arguments = parse_arguments(_parser(), argv)
    try:
        plan = CLIENTS[arguments.client](target(arguments, os.environ))
        if not arguments.write:
            print(shown(plan))
            return 0
        for settings in plan.files:
            _say(settings)
    except BadRequest as error:
        print(f"turnwire connect: {error}", file=sys.stderr)
        return 2
    except (CannotAsk, Unreadable, OSError) as error:
        print(f"turnwire connect: {error}", file=sys.stderr)
        return 1
    for note in plan.notes:
        print(note)
    print(f"Start {plan.client} with:  {plan.start}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="turnwire connect", allow_abbrev=False, description=__doc__)
    parser.add_argument("client", choices=list(CLIENTS))
    parser.add_argument("--url", default=DEFAULT_URL, help="the server [default: %(default)s]")
    parser.add_argument("--model", metavar="NAME", help="a served name [default: the first one]")
    parser.add_argument(
        "--key", default=os.environ.get("TURNWIRE_API_KEY"), help="a key of the server; TURNWIRE_API_KEY"
    )
    parser.add_argument("--write", action="store_true", help="merge into the client's settings, keeping a copy of them")
    parser.add_argument("--dir", metavar="DIR", help="keep them in this folder instead of the client's own")
    parser.add_argument("--default", action="store_true", help="make the model the client's default, replacing another")
    parser.add_argument(
        "--api", choices=["messages", "responses", "chat"], help="OpenClaw, opencode [default: messages]"
    )
    parser.add_argument("--websockets", action="store_true", help="Codex: talk over a WebSocket")
    parser.add_argument("--catalog-file", action="store_true", help="Codex: the model catalogue as a file, not by URL")
    return parser


def target(arguments: argparse.Namespace, env: Mapping[str, str]) -> Target:
    """What the server says, and what was asked for. Raises CannotAsk."""
    served = ask(arguments.url, arguments.key)
    model = served.choose(arguments.model)
    return Target(
        url=served.url,
        model=model,
        others=[other for other in served.models if other.id != model.id],
        key=arguments.key,
        api=arguments.api,
        websockets=arguments.websockets,
        catalogue=served.catalogue,
        catalogue_file=arguments.catalog_file,
        default=arguments.default,
        folder=arguments.dir,
        env=env,
    )


def shown(plan: Plan) -> str:
    """The plan as text: variables to export, or files to fill."""
    lines = [f"# {note}" for note in plan.notes]
    if plan.exports:
        lines += [f"export {name}={shlex.quote(value)}" for name, value in plan.exports.items()]
    else:
        for settings in plan.files:
            if settings.whole:
                lines.append(f"# {settings.path}: written by --write, or by `turnwire catalog codex -o`")
            else:
                lines += [f"# {settings.path}", text_of(settings)]
    return "\n".join([*lines, plan.start if plan.exports else f"# start with: {plan.start}"])


def _say(settings: Settings) -> None:
    done = write(settings)
    if done.untouched:
        print(f"{done.path}: all is there already")
        return
    print(f"{done.path}: written" + (f"; as it was: {done.backup}" if done.backup else ""))
    for change in done.changed:
        print(f"  {change}")
