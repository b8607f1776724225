"""Spans reach an OTLP receiver as they were recorded; what is not sampled, or cannot be exported,
costs nothing."""

import asyncio
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from schemas.errors import Invalid
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.service import ServiceConfig
from services.runtime.observability.scope import Attributes
from services.runtime.observability.telemetry import open_log
from services.runtime.observability.tracing import OpenSpan, Tracer, open_tracer
from services.runtime.process import Process
from tests.kit.nats import free_port
from tests.kit.otlp import Receiver, receiving
from tests.kit.waiting import LIMIT_S

CLIENT = {"traceparent": f"00-{'a1' * 16}-{'b2' * 8}-01", "tracestate": "vendor=value"}
TRACE = "a1" * 16


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def make(receiver: Receiver, log: io.StringIO) -> Callable[..., Tracer]:
    def opened(stage: Any = "frontend", **settings: Any) -> Tracer:
        config = FrontendConfig(**{"tracing": True, "otlp_endpoint": receiver.url, **settings})
        return open_tracer(
            config, stage, f"{stage}-1-abc", open_log(ServiceConfig(log_format="json"), log)
        )

    return opened


def serve(tracer: Tracer, headers: dict[str, str], attributes: Attributes) -> OpenSpan:
    """Begins the span of a request, which is sampled."""
    scope = tracer.sample(headers)
    assert scope is not None
    return scope.open("POST /x", 1, attributes, server=True)


async def test_a_request_and_what_another_process_records_of_it_are_one_trace(
    make: Callable[..., Tracer], receiver: Receiver
) -> None:
    frontend, worker = make(), make("worker")
    request = serve(frontend, CLIENT, {"http.route": "/x", "left.out": None})
    with frontend.within(lambda: request):
        assert frontend.parent() is request
    turn = request.open("chat m", 500, {"gen_ai.request.model": "m"})
    retry = turn.open("retry", 1_000, {}, after=turn)
    scope = worker.scope(msgspec.json.decode(msgspec.json.encode(retry.carrier)))
    scope.record(
        "decode",
        2_000,
        3_000,
        {"n": 1},
        error="engine",
        events=[("refused", 2_500, {"why": "full"})],
    )
    retry.end(4_000)
    turn.end(5_000_000_000_000_000_000)
    request.set({"http.response.status_code": 200})
    request.end(5_000_000_000_000_000_001)
    await asyncio.gather(frontend.close(), worker.close())
    found = receiver.of(TRACE)
    assert sorted(found.lines()) == ["      decode", "    retry", "  chat m", "POST /x"]
    root, decode = found.one("POST /x"), found.one("decode")
    assert (root.parent, root.kind, root.state) == ("b2" * 8, 2, "vendor=value")
    assert root.attributes == {"http.route": "/x", "http.response.status_code": 200}
    assert (decode.start, decode.end, decode.failed) == (2_000, 3_000, True)
    assert decode.state == "vendor=value"
    assert decode.attributes == {"n": 1, "error.type": "engine"}
    assert decode.events == [("refused", {"why": "full"})]
    assert found.one("retry").links == [found.one("chat m").id]
    assert decode.resource["service.name"] == "turnwire-worker"


async def test_the_client_decides_else_the_ratio(
    make: Callable[..., Tracer], receiver: Receiver
) -> None:
    none, every = make(trace_ratio=0), make(trace_ratio=1)
    assert none.sample(CLIENT) is not None
    assert none.sample({}) is None
    assert every.sample({}) is not None
    assert every.sample({"traceparent": CLIENT["traceparent"][:-1] + "0"}) is None
    nonsense = {"traceparent": "00-\udcff-x-01", "tracestate": "\udcff=\udcff"}
    msgspec.json.encode(serve(every, nonsense, {}).carrier)
    await asyncio.gather(none.close(), every.close())


def test_tracing_without_its_packages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "services.runtime.observability.tracing", None)
    with pytest.raises(Invalid, match="tracing needs the packages of the extra otel"):
        Process("worker", ServiceConfig(tracing=True), Mock())


async def test_a_receiver_that_is_down_is_one_line(
    make: Callable[..., Tracer], log: io.StringIO
) -> None:
    tracer = make(otlp_endpoint=f"http://user:secret@127.0.0.1:{free_port()}")
    for _ in range(300):
        serve(tracer, {}, {}).end(1)
    async with asyncio.timeout(LIMIT_S):
        while not log.getvalue():
            await asyncio.sleep(0.01)
    await tracer.close()
    (line,) = log.getvalue().splitlines()
    assert msgspec.json.decode(line)["event"] == "tracing.problem"
    assert "secret" not in line
