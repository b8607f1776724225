"""KV events over ZMQ: they are tried before they are believed."""

import asyncio
import itertools
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineInfo
from services.worker.engines.registry import open_engine
from services.worker.engines.remote import trials
from services.worker.engines.remote.listed_models import event_host
from services.worker.engines.zmq_events.reader import ZmqKvReader
from services.worker.kv.events import BlocksStored
from tests.kit.engines import EMPTY_MODEL
from tests.kit.waiting import LIMIT_S, eventually
from tests.worker.fake_sglang_server import fake_sglang_server
from tests.worker.fake_vllm import stored

zmq = pytest.importorskip("zmq")


class Publisher:
    """The end of an engine."""

    def __init__(self, host: str) -> None:
        self._socket = zmq.Context.instance().socket(zmq.PUB)
        self._socket.set(zmq.IPV6, int("[" in host))
        self.port: int = self._socket.bind_to_random_port(f"tcp://{host}")
        self._numbers = itertools.count()

    def publish(self, events: list[dict[str, Any]]) -> None:
        payload = msgspec.msgpack.encode([0.0, events, 0])
        self._socket.send_multipart([b"", next(self._numbers).to_bytes(8, "big"), payload])

    def close(self) -> None:
        self._socket.close(linger=0)


@contextmanager
def publishing(host: str) -> Iterator[Publisher]:
    publisher = Publisher(host)
    try:
        yield publisher
    finally:
        publisher.close()


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000",
        pytest.param(
            "http://[::1]:8000", marks=pytest.mark.skipif(not _has_ipv6(), reason="no IPv6")
        ),
    ],
)
async def test_events_that_are_looked_for_are_also_read(url: str) -> None:
    with publishing(event_host(url)) as publisher:
        reader = ZmqKvReader(f"tcp://{event_host(url)}:{publisher.port}")
        finding = asyncio.create_task(reader.finds([1, 2, 3], 2, LIMIT_S))

        def finds() -> bool:
            publisher.publish([stored(7, None, [8, 9], None), stored(8, None, [1, 2], None)])
            return finding.done()

        await eventually(finds)
        assert await finding
        assert not await reader.finds([1, 3], 2, 0.05)
        event = await anext(reader.read(2))
        assert isinstance(event, BlocksStored)
        assert [ids for _, ids in event.blocks] == [[8, 9]]
        reader.close()


async def test_events_that_do_not_arrive_are_lacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with publishing("127.0.0.1") as publisher:
        assert "kv_events" in (await _start(tmp_path, publisher)).features
        monkeypatch.setattr(trials, "EVENTS_S", 0.05)
        monkeypatch.setattr(publisher, "publish", lambda events: None)  # something drops them
        info = await _start(tmp_path, publisher)
    assert f"arrived from tcp://127.0.0.1:{publisher.port}" in info.lacking["kv_events"]
    assert "prefix_cache" in info.features


async def _start(model: Path, publisher: Publisher) -> EngineInfo:
    """Starts an engine over a server that publishes, and stops it."""
    (model / "config.json").write_text(EMPTY_MODEL)
    events = {"publisher": "zmq", "endpoint_host": "*", "dp_size": 1}
    events["endpoint_port_base"] = publisher.port
    async with fake_sglang_server(kv_events=events) as server:
        server.engine.args.kv_events_config = events
        server.engine.publish = publisher.publish  # type: ignore[method-assign]
        engine: Any = open_engine(
            "sglang-server", WorkerConfig(model=str(model), engine_url=server.url)
        )
        info: EngineInfo = await engine.start()
        await engine.stop(1.0)
    return info
