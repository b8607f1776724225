"""Logs come out once, typed and at their level; metrics and health answer over HTTP."""

import io
from collections.abc import AsyncIterator

import aiohttp
import msgspec
import pytest

from services.runtime.config import FrontendConfig
from services.runtime.health import HealthServer
from services.runtime.observability.telemetry import (
    new_registry,
    open_log,
)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]


def test_log_lines_are_json_with_what_was_bound() -> None:
    stream = io.StringIO()
    log = open_log(FrontendConfig(), stream, stage="frontend", id="f1")
    log.debug("too fine")
    log.info("turn", turn="t1", tokens=3)
    (line,) = lines(stream)
    assert str(line.pop("time")).endswith("Z")
    assert line == {
        "level": "info",
        "event": "turn",
        "stage": "frontend",
        "id": "f1",
        "turn": "t1",
        "tokens": 3,
    }


class Readiness:
    """Why the process is not ready."""

    reason: str | None = "loading the model"


@pytest.fixture
async def readiness_and_url() -> AsyncIterator[tuple[Readiness, str]]:
    readiness = Readiness()
    server = HealthServer(new_registry(), lambda: readiness.reason)
    port = await server.start("127.0.0.1", 0)
    yield readiness, f"http://127.0.0.1:{port}"
    await server.stop()


async def test_health_is_served(readiness_and_url: tuple[Readiness, str]) -> None:
    readiness, url = readiness_and_url
    async with aiohttp.ClientSession(url) as session:
        async with session.get("/live") as live:
            assert live.status == 200
        async with session.get("/ready") as ready:
            assert (ready.status, await ready.json()) == (
                503,
                {"status": "not ready", "reason": "loading the model"},
            )
        readiness.reason = None
        async with session.get("/ready") as ready:
            assert (ready.status, await ready.json()) == (200, {"status": "ready"})
        async with session.get("/metrics") as metrics:
            assert "process_cpu_seconds_total" in await metrics.text()
            assert metrics.content_type == "text/plain"
        async with session.get(
            "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
        ) as metrics:
            assert (await metrics.text()).endswith("# EOF\n")
