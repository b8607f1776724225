"""`turnwire connect CLIENT`: prints or writes the settings with which an agent client uses a
running server."""

import itertools
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from services.cli.common import CommandError
from services.cli.connect.client import (
    AgentClient,
    ApiName,
    BadRequest,
    ClientPlan,
    ClientSettings,
    Target,
    client_names,
    load_client,
)
from services.cli.connect.server import ServedModel, read_models
from services.cli.connect.settings_file import text_of, undo, write
from services.cli.instances import server_url
from services.cli.registry import Command
from services.runtime.config.names import KEY_VARIABLE


@dataclass(frozen=True, kw_only=True)
class ConnectFlags:
    """The flags of `turnwire connect`."""

    url: str | None = None
    """Address of the server; default: the newest `turnwire up` on this machine, else port 8000."""
    model: str | None = None
    """Name of a model that the server has; default: the first one."""
    key: Annotated[str | None, Parameter(env_var=KEY_VARIABLE)] = None
    """API key for the server."""
    write: bool = False
    """Merge the settings into the client's own, after making a copy of them."""
    undo: bool = False
    """Restore the client's settings as they were before --write; changes made since stay. Needs no
    server."""
    dir: str | None = None
    """Folder for the settings; default: the client's own."""
    default: bool = False
    """Make the model the client's default, replacing another."""
    api: ApiName | None = None
    """The API to use, for clients with a choice; default: the best for the client."""
    websockets: bool = False
    """For Codex: connect to the server by WebSocket."""
    catalog_file: bool = False
    """For Codex: read the model catalogue from a file, not by URL."""


def connect(
    client: Annotated[str, Parameter(choices=client_names())],
    /,
    *,
    flags: Annotated[ConnectFlags, Parameter(name="*")] = ConnectFlags(),
) -> int:
    """Prints the settings with which a client uses a running server; with --write, merges them into
    its own.

    Context windows and limits are the server's.

    Args:
        client: The client to set up.
    """
    module = load_client(client)
    if flags.undo:
        print(*undo_all(module, flags, os.environ), sep="\n")
        return 0
    plan = module.plan(make_target(flags, os.environ))
    if not flags.write:
        print(text_of_plan(plan))
        return 0
    if plan.code:
        raise BadRequest(f"{module.title} is a library: its code is printed without --write")
    for settings in plan.files:
        print(*write(settings), sep="\n")
    for note in plan.notes:
        print(note)
    reads = [f". {shlex.quote(settings.path)}" for settings in plan.files if settings.kind == "env"]
    print(f"Start {module.title} with:  {' && '.join([*reads, plan.start])}")
    folder = f" --dir {shlex.quote(flags.dir)}" if flags.dir else ""
    print(f"Undo with:  turnwire connect {client}{folder} --undo")
    return 0


COMMAND = Command(connect)


def undo_all(client: AgentClient, flags: ConnectFlags, env: Mapping[str, str]) -> list[str]:
    """Undoes what any `--write` of this client wrote. Returns lines for the user. Raises
    CommandError or OSError."""
    if flags.write:
        raise BadRequest("--write and --undo exclude each other")
    files: dict[str, ClientSettings] = {}
    for default, catalogue_file in itertools.product((False, True), repeat=2):
        target = Target(
            "",
            ServedModel(""),
            default=default,
            catalogue_file=catalogue_file,
            folder=flags.dir,
            env=env,
        )
        files |= {settings.path: settings for settings in client.plan(target).files}
    lines = undo(*files.values())
    if lines:
        return lines
    paths = "a library"
    if files:
        paths = f"{', '.join(files)}; if a file was a link, put the link back first"
    raise CommandError(f"nothing to undo: no file has settings that --write wrote ({paths})")


def make_target(flags: ConnectFlags, env: Mapping[str, str]) -> Target:
    """Reads the server's models, and adds the user's options. Raises ServerError."""
    server = read_models(server_url(flags.url, env), flags.key)
    model = server.choose(flags.model)
    return Target(
        url=server.url,
        model=model,
        others=[other for other in server.models if other.id != model.id],
        key=flags.key,
        api=flags.api,
        websockets=flags.websockets,
        catalogue=server.catalogue,
        catalogue_file=flags.catalog_file,
        default=flags.default,
        folder=flags.dir,
        env=env,
    )


def text_of_plan(plan: ClientPlan) -> str:
    """The plan as text: a program, variables to export, or the contents of files."""
    if plan.code:
        return plan.code.rstrip()
    lines = [f"# {note}" for note in plan.notes]
    if plan.exports:
        exports = [f"export {name}={shlex.quote(value)}" for name, value in plan.exports.items()]
        return "\n".join([*lines, *exports, plan.start])
    for settings in plan.files:
        if settings.whole:
            lines.append(
                f"# {settings.path}: written by --write, or by `turnwire catalog codex -o`"
            )
        else:
            lines += [f"# {settings.path}", text_of(settings)]
    return "\n".join([*lines, f"# start with: {plan.start}"])
