"""Runs the frontend in this process over any gateway."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from services.frontend.app import make_app, make_runner
from services.frontend.pipeline.interfaces import TurnGateway
from services.runtime.config import FrontendConfig


@asynccontextmanager
async def serving(gateway: TurnGateway, config: FrontendConfig | None = None) -> AsyncIterator[str]:
    """Serves the whole HTTP stack on a free loopback port; yields its URL."""
    log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[_silent])
    app = make_app(config or FrontendConfig(), gateway, CollectorRegistry(), log)
    runner = make_runner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _silent(_logger: object, _method: str, _event: object) -> str:
    raise structlog.DropEvent
