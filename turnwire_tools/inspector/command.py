"""`turnwire inspect`: a web page that shows sessions and turns, of the bus or of recordings."""

import asyncio
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from aiohttp import web
from cyclopts import Parameter

from schemas.errors import TurnwireError
from services.cli.common import (
    UsageError,
    other_machines_hosts,
    reachable_host,
    read_text,
    reserve_ports,
)
from services.cli.instances import Instance, instance_on, load_bus, newest_instance
from services.cli.registry import BUS_SETTINGS, Command
from services.cli.signals import run, status_of
from services.runtime.config.base import Count, Port
from services.runtime.config.loader import Sources
from services.runtime.config.masking import mask_servers
from services.runtime.config.service import BusConfig
from services.runtime.request_headers import AllowedHosts, is_loopback, replace_invalid_bytes
from services.tokenization.detokenizer import Vocabulary
from services.tokenization.tokenizer_files import load_backend
from turnwire_tools.inspector import recording
from turnwire_tools.inspector.bus_follower import BusFollower, TurnSource
from turnwire_tools.inspector.fold import MIB, Fold
from turnwire_tools.inspector.images import InspectorImages
from turnwire_tools.inspector.server import InspectorServer
from turnwire_tools.inspector.tokens import Vocabularies

NICE = 10
"""The pipeline's processes on this machine come first."""


@dataclass(frozen=True, kw_only=True)
class InspectorFlags:
    """The flags of `turnwire inspect`."""

    host: str = "127.0.0.1"
    """Address to listen on. Any other than a loopback address needs a key."""
    port: Port = 8090
    """Port to listen on; 0: a free one."""
    key_file: Path | None = None
    """File with the key that a browser has to present; default: none on a loopback address, else a
    new one."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names under which a browser may open the page, besides localhost and addresses."""
    model: tuple[str, ...] = ()
    """Directory or hub id of the served model: its tokenizer shows tokens as text; NAME=DIRECTORY
    for the turns of one of several models; default: the models of the running `turnwire up`, or
    TURNWIRE_MODEL."""
    max_turns: Count = 20_000
    """Turns that are kept; the oldest are dropped."""
    memory_mb: Count = 256
    """Memory for prompts that the next ones are compared with, and again for texts."""
    no_texts: bool = False
    """Show no words of conversations: only sizes, times, causes, and names of tools, clients and
    keys."""


def inspect(
    sources: Sources,
    /,
    *file: Path,
    flags: Annotated[InspectorFlags, Parameter(name="*")] = InspectorFlags(),
) -> int:
    """Serves a page that shows the conversations of agents, what each turn cost, and what was
    computed again and why.

    Without a file it follows the bus until Ctrl-C.

    Args:
        file: Recordings of `turnwire tap`, made with `--record` or `--json`.
    """
    return run(_serve(sources, file, flags))


COMMAND = Command(inspect, (BusConfig,), essential=BUS_SETTINGS)


async def _serve(sources: Sources, files: tuple[Path, ...], flags: InspectorFlags) -> int:
    config = BusConfig() if files else load_bus(sources)
    env = sources.env
    instance = instance_on(config.nats_url, env) or newest_instance(env)
    vocabularies = await asyncio.to_thread(load_vocabularies, flags.model, env, instance)
    fold = Fold(
        max_turns=flags.max_turns,
        max_bytes=flags.memory_mb * MIB,
        vocabularies=vocabularies,
        texts=not flags.no_texts,
    )
    for path in files:
        for at, receiver, message in recording.read(str(path), read_text(path)):
            fold.take(message, at, receiver)

    names = ", ".join(path.name for path in files) or mask_servers(config.nats_url)
    source = TurnSource(names, live=not files)
    key = required_key(flags)
    hosts = AllowedHosts.of(flags.allowed_hosts, flags.host, guarded=key is not None)
    images = InspectorImages()
    server = InspectorServer(fold, source, hosts, key=key, vocabularies=vocabularies, images=images)

    runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    replace_invalid_bytes(runner.server)
    (port,) = reserve_ports(flags.host, flags.port, 1)

    async def listen() -> None:
        await web.TCPSite(runner, flags.host, port).start()
        address, *others = addresses(flags.host, runner.addresses[0][1], key, hosts)
        print(f"turnwire inspect: {address}", flush=True)
        if others:
            print(f"From other machines:  {' or '.join(others)}", flush=True)

    def learn(successor: Instance) -> None:
        vocabularies.add(_of_instance(successor))

    try:
        if files:
            await listen()
            return await status_of(asyncio.get_running_loop().create_future())  # until Ctrl-C
        with suppress(OSError):
            os.nice(NICE)
        async with BusFollower(config, env, fold, images, source, on_next=learn) as follower:
            # Who finds the page can rely on it to have every turn from then on.
            await listen()
            return await status_of(asyncio.ensure_future(follower.stay()))
    finally:
        await runner.cleanup()


def load_vocabularies(
    models: Sequence[str], env: Mapping[str, str], instance: Instance | None
) -> Vocabularies:
    """Loads the vocabularies of the models that `--model` names, else of the instance or
    TURNWIRE_MODEL, as far as they can be read.

    Raises TurnwireError, OSError or ValueError for a named model without a readable tokenizer.
    """
    if models:
        loaded = {name: _vocabulary(path) for name, path in map(_named_model, models)}
        return Vocabularies(loaded, loaded.get(""))
    if instance is not None and len(instance.models) > 1:
        return Vocabularies(_of_instance(instance))
    path = instance.model_dir if instance is not None else env.get("TURNWIRE_MODEL")
    return Vocabularies(of_others=_readable_vocabulary(path)) if path else Vocabularies()


def _of_instance(instance: Instance) -> dict[str, Vocabulary]:
    """The vocabularies of an instance's models, by name."""
    vocabularies: dict[str, Vocabulary] = {}
    paths = {path: _readable_vocabulary(path) for path in set(instance.model_dirs.values())}
    for name, path in instance.model_dirs.items():
        vocabulary = paths[path]
        if vocabulary is not None:
            vocabularies[name] = vocabulary
    return vocabularies


def _readable_vocabulary(path: str) -> Vocabulary | None:
    """The vocabulary of a model; None, with a warning, if it cannot be read."""
    try:
        return _vocabulary(path)
    except (TurnwireError, OSError, ValueError) as error:
        print(f"turnwire inspect: tokens are shown without their text: {error}", file=sys.stderr)
        return None


def _named_model(value: str) -> tuple[str, str]:
    """The served name and the path in a value of `--model`; "": it is for all turns."""
    name, is_named, path = value.partition("=")
    return ("", value) if not is_named or Path(value).is_dir() else (name, path)


def _vocabulary(path: str) -> Vocabulary:
    return Vocabulary(load_backend(path, trust_remote_code=False))


def required_key(flags: InspectorFlags) -> str | None:
    """The key that the server requires. Raises OSError or UsageError."""
    if flags.key_file is not None:
        key = read_text(flags.key_file).strip()
        if len(key) < 16:
            raise UsageError(f"{flags.key_file} has a key of less than 16 characters")
        return key
    if is_loopback(flags.host):
        return None
    return secrets.token_urlsafe(24)


def addresses(host: str, port: int, key: str | None, allowed: AllowedHosts) -> list[str]:
    """What a user opens in a browser: the first on this machine, the others on other machines, if
    it listens on all addresses."""
    query = "" if key is None else f"?key={key}"
    hosts = [reachable_host(host), *other_machines_hosts(host, allowed)]
    return [f"http://{name}:{port}/{query}" for name in hosts]
