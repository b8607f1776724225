"""Logs come out once, typed and at their level; metrics and health answer over HTTP."""

import asyncio
import io
import logging
from collections.abc import AsyncIterator, Iterator

import aiohttp
import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from services.runtime.config import FrontendConfig
from services.runtime.health import HealthServer
from services.runtime.observability.telemetry import (
    LAG_SAMPLE_S,
    adopt_library_logs,
    new_registry,
    open_log,
    render_metrics,
    watch_event_loop,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_half_a_surrogate_pair_is_no_reason_to_lose_a_line() -> None:
    stream = io.StringIO()
    open_log(FrontendConfig(), stream).info("asked", by="a\udcff é", what=object)
    (line,) = lines(stream)
    assert (line["event"], line["by"], line["what"]) == ("asked", "a? é", str(object))


def test_traceback_of_one_event_is_written_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("services.runtime.observability.log_lines.time.monotonic", lambda: now[0])
    stream = io.StringIO()
    log = open_log(FrontendConfig(), stream).bind(id="f1")
    for step in range(40):
        now[0] = 100 + step * 0.1
        for event in ("turn.failed", "task.failed"):
            log.error(event, exc_info=ValueError(step))
        log.error("said", turn=step)
        log.error(f"a library's text {step}", logger="asyncio", exc_info=ValueError(step))
    written = lines(stream)
    assert sum(line["event"] == "said" for line in written) == 40
    for event in ("turn.failed", "task.failed"):
        assert [line.get("left_out") for line in written if line["event"] == event] == [
            None,
            9,
            9,
            9,
        ]
    assert sum("logger" in line for line in written) == 4


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


def test_number_that_json_lacks_is_a_text() -> None:
    stream = io.StringIO()
    open_log(FrontendConfig(), stream).info(
        "NaN", wait_s=float("inf"), of={"a": [float("nan"), -float("inf")]}, b="\ud800"
    )
    (line,) = lines(stream)
    del line["time"]
    assert line == {
        "level": "info",
        "event": "NaN",
        "wait_s": "Infinity",
        "of": {"a": ["NaN", "-Infinity"]},
        "b": "?",
    }


def test_exceptions_stay_on_one_line() -> None:
    stream = io.StringIO()
    log = open_log(FrontendConfig(log_level="warning"), stream)
    try:
        raise ValueError("of this kind")
    except ValueError:
        log.exception("failed")
    (line,) = lines(stream)
    assert "ValueError: of this kind" in str(line["exception"])


def test_a_terminal_gets_text_and_a_pipe_gets_json() -> None:
    terminal, pipe, forced = Terminal(), io.StringIO(), io.StringIO()
    open_log(FrontendConfig(), terminal).info("hello", port=1)
    open_log(FrontendConfig(), pipe).info("hello", port=1)
    open_log(FrontendConfig(log_format="console"), forced).info("hello", port=1)
    assert "\x1b[" in terminal.getvalue()
    assert lines(pipe)[0]["port"] == 1
    assert forced.getvalue().rstrip().endswith("port=1")
    assert "\x1b[" not in forced.getvalue()


def test_logs_of_libraries_have_the_same_form(root_logger: logging.Logger) -> None:
    stream = io.StringIO()
    adopt_library_logs(open_log(FrontendConfig(), stream, id="f1"))
    logging.getLogger("some.library").warning("%d of %d", 1, 2)
    logging.getLogger("some.library").info("chatter")
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["logger"], line["id"]) == (
        "1 of 2",
        "warning",
        "some.library",
        "f1",
    )


def test_each_process_has_a_registry_of_its_own() -> None:
    one, other = new_registry(), new_registry()
    Counter("turnwire_things", "Things.", registry=one).inc()
    names = {
        family.name for family in text_string_to_metric_families(render_metrics(one)[0].decode())
    }
    assert {
        "turnwire_things",
        "process_cpu_seconds",
        "python_gc_collections",
        "python_info",
    } <= names
    assert b"turnwire_things" not in render_metrics(other)[0]


async def test_a_blocked_loop_shows() -> None:
    registry, loop = CollectorRegistry(), asyncio.get_running_loop()
    task = asyncio.create_task(watch_event_loop(registry))
    await asyncio.sleep(0)
    stalled_until = loop.time() + 3 * LAG_SAMPLE_S
    while loop.time() < stalled_until:
        pass
    await asyncio.wait({task}, timeout=LAG_SAMPLE_S)
    task.cancel()
    assert (registry.get_sample_value("turnwire_event_loop_lag_seconds_sum") or 0) >= LAG_SAMPLE_S


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


async def test_a_taken_port_is_an_error(readiness_and_url: tuple[Readiness, str]) -> None:
    second = HealthServer(new_registry(), lambda: None)
    with pytest.raises(OSError, match="address already in use"):
        await second.start("127.0.0.1", int(readiness_and_url[1].rpartition(":")[2]))
    await second.stop()
