"""`turnwire inspect`: a web page that shows sessions and turns, of the bus or of recordings."""

import asyncio
import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from aiohttp import web
from cyclopts import Parameter

from schemas import subjects
from schemas.errors import TurnwireError
from services.cli.common import UsageError, read_text, reserve_ports
from services.cli.instances import load_bus, newest_instance
from services.cli.observer import observing
from services.cli.registry import BUS_SETTINGS, Command
from services.cli.signals import run, status_of
from services.images.store import ImageStore
from services.runtime.bus import Delivery
from services.runtime.config.base import Count, Port
from services.runtime.config.loader import Sources
from services.runtime.config.masking import mask_servers
from services.runtime.config.service import BusConfig, ServiceConfig
from services.runtime.config.stores import ImageStoreConfig
from services.runtime.observability.telemetry import open_log
from services.runtime.request_headers import AllowedHosts, is_loopback, replace_invalid_bytes
from services.tokenization.detokenizer import Vocabulary
from services.tokenization.tokenizer_files import load_backend
from turnwire_tools.inspector import recording
from turnwire_tools.inspector.fold import MIB, Fold
from turnwire_tools.inspector.images import Images
from turnwire_tools.inspector.server import InspectorServer
from turnwire_tools.inspector.tokens import NO_VOCABULARIES, Vocabularies
from turnwire_tools.tap import messages
from turnwire_tools.tap.follow import OnListening, follow

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
    for the turns of one of several models; default: the first model of the running `turnwire up`,
    or TURNWIRE_MODEL."""
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
    vocabularies = await asyncio.to_thread(load_vocabularies, flags.model, sources.env)
    fold = Fold(
        max_turns=flags.max_turns,
        max_bytes=flags.memory_mb * MIB,
        vocabularies=vocabularies,
        texts=not flags.no_texts,
    )
    for path in files:
        for at, receiver, message in recording.read(str(path), read_text(path)):
            fold.take(message, at, receiver)

    source = ", ".join(path.name for path in files) or mask_servers(config.nats_url)
    key = required_key(flags)
    hosts = AllowedHosts.of(flags.allowed_hosts, flags.host, guarded=key is not None)
    images = Images()
    server = InspectorServer(
        fold, source, hosts, key=key, vocabularies=vocabularies, images=images, live=not files
    )

    runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    replace_invalid_bytes(runner.server)
    (port,) = reserve_ports(flags.host, flags.port, 1)

    async def listen() -> None:
        await web.TCPSite(runner, flags.host, port).start()
        print(f"turnwire inspect: {_address(runner, flags.host, key)}", flush=True)

    try:
        if not files:
            # Who finds the page can rely on it to have every turn from then on.
            return await _follow(config, fold, images, listen)
        await listen()
        return await status_of(asyncio.get_running_loop().create_future())  # until Ctrl-C
    finally:
        await runner.cleanup()


async def _follow(config: BusConfig, fold: Fold, images: Images, on_listening: OnListening) -> int:
    def take(delivery: Delivery) -> None:
        message = messages.of_turn(delivery.subject, delivery.data)
        now = messages.sent_at(message, time.time())
        fold.take(message, now, messages.receiver_of(delivery.subject))

    with suppress(OSError):
        os.nice(NICE)
    log = open_log(ServiceConfig(log_level="error"))
    async with observing(config, "inspect-images") as bus:
        images.connect(ImageStore(bus, ImageStoreConfig(), log))
        # One subscription, which keeps the order of all messages.
        return await follow(config, "inspect", [subjects.ALL], take, on_listening=on_listening)


def load_vocabularies(models: Sequence[str], env: Mapping[str, str]) -> Vocabularies:
    """Loads the vocabularies of the models that `--model` names, else of the running `turnwire up`
    or TURNWIRE_MODEL, as far as they can be read.

    Raises TurnwireError, OSError or ValueError for a named model without a readable tokenizer.
    """
    if models:
        loaded = {name: _vocabulary(path) for name, path in map(_named_model, models)}
        return Vocabularies(loaded, loaded.get(""))
    instance = newest_instance(env)
    path = instance.model_dir if instance is not None else env.get("TURNWIRE_MODEL")
    if not path:
        return NO_VOCABULARIES
    try:
        vocabulary = _vocabulary(path)
    except (TurnwireError, OSError, ValueError) as error:
        print(f"turnwire inspect: tokens are shown without their text: {error}", file=sys.stderr)
        return NO_VOCABULARIES
    if instance is not None and len(instance.models) > 1:
        return Vocabularies({instance.model: vocabulary})
    return Vocabularies(of_others=vocabulary)


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


def _address(runner: web.AppRunner, host: str, key: str | None) -> str:
    """What a user opens in a browser on this machine."""
    port = runner.addresses[0][1]
    if host in ("0.0.0.0", "::", ""):
        host = "127.0.0.1"
    elif ":" in host:
        host = f"[{host}]"
    address = f"http://{host}:{port}/"
    if key is not None:
        address += f"?key={key}"
    return address
