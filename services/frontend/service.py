"""Runs the frontend process: HTTP on one side, the bus on the other."""

import asyncio

import msgspec
from aiohttp import web

from schemas import subjects
from schemas.control import FrontendNotice, Load
from services.frontend.apis.responses.server import RESPONSES
from services.frontend.apis.responses.store.shared import Sharing, bucket_config
from services.frontend.app import HOSTED, make_app, make_runner
from services.frontend.http.file_watch import FileWatch
from services.frontend.http.tls import Tls
from services.frontend.turns.bus_gateway import BusGateway
from services.runtime.bus import Message
from services.runtime.config import FrontendConfig
from services.runtime.config.loader import ConfigError
from services.runtime.observability.memory import relax_gc_and_trim_heap
from services.runtime.process import Process
from services.runtime.storage.kv import Bucket

BACKLOG = 1024
LAST_BYTES_S = 2.0
"""For handlers to write their last bytes after the drain."""


async def run(config: FrontendConfig) -> None:
    """Serves HTTP until `Process.stop`, then lets open turns end.

    Raises:
        ConfigError: a file or the port that the configuration names cannot be used.
        TurnwireError: no bus.
        EngineFailed: the bus was lost for good.
    """
    process = Process("frontend", config)
    gateway = BusGateway(process, config)
    process.load = lambda: Load(running=gateway.running)
    try:
        sharing = _sharing(process, config)
        app = make_app(config, gateway, process.metrics, process.log, sharing=sharing, tracer=process.tracer)
        tls = Tls.of(config)
    except (ValueError, OSError) as error:
        raise ConfigError([str(error)]) from error
    await process.connect()
    await gateway.start()
    responses = app[RESPONSES]

    def noticed(message: Message) -> None:
        notice = _notice.decode(message.data)
        (gateway.apply if notice.action == "place" else responses.apply_notice)(notice)

    await process.subscribe(subjects.frontends(), noticed)
    if tls is not None:
        process.spawn(FileWatch(tls.files, tls.reload, process.log).run(), "watch certificates")
    runner = make_runner(app, config, shutdown_timeout=LAST_BYTES_S)
    await runner.setup()
    context = tls.context if tls is not None else None
    site = web.TCPSite(runner, config.host, config.port, backlog=BACKLOG, ssl_context=context)
    try:
        await process.announce()  # a client's first request must find the models
        try:
            await site.start()
        except OSError as error:
            raise ConfigError([f"{error.strerror or error}; choose another address with --host and --port"]) from error
        process.log.info(
            "frontend.listening",
            host=config.host,
            port=runner.addresses[0][1],
            scheme="https" if tls is not None else "http",
        )

        async def drain() -> None:
            await site.stop()
            hosted = app.get(HOSTED)
            turns = gateway.drain() if hosted is None else hosted.drain(gateway.drain)
            await asyncio.gather(turns, responses.drain())
            await asyncio.sleep(0)  # lets the handlers of the last turns continue

        relax_gc_and_trim_heap()
        await process.run(drain)
    finally:
        await runner.cleanup()


def _sharing(process: Process, config: FrontendConfig) -> Sharing | None:
    """Opens what stored Responses are shared by; None where they are not shared."""
    if config.response_store != "shared":
        return None
    return Sharing(
        bucket=Bucket(process.bus, bucket_config(config), process.log),
        id=process.id,
        alive=lambda id: process.registry.get("frontend", id) is not None,
        publish_notice=lambda notice: process.publish(subjects.frontends(), notice),
        spawn=process.spawn,
    )


_notice = msgspec.json.Decoder(FrontendNotice)
