"""No request holds the frontend's event loop: the processor time of one turn of the loop has a
limit, whatever a client sends. Processor time, because a busy machine must not fail these tests."""

import asyncio
import gc
import gzip
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import brotli
import pytest
import zstandard
from aiohttp import ClientSession
from msgspec.structs import replace

from schemas.errors import Invalid
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.shared.decode import MAX_VALUES
from services.frontend.http.bodies import PARSE_IN_THREAD_FROM_BYTES, THREAD_FROM_BYTES, decode
from services.runtime.config import FrontendConfig
from tests.frontend.loop_bodies import KINDS, Kind
from tests.kit.every import Cases
from tests.kit.frontend import CARD, FakeGateway, Served, serving
from tests.kit.waiting import LIMIT_S

HOLD_S = 0.05
"""Limit of one turn of the loop on an idle machine."""
SLACK = 5.0
"""Processor time on a machine in which other processes use the caches and the second thread of a
core."""
ON_LOOP = PARSE_IN_THREAD_FROM_BYTES - 4096
FAMILIES = ("hermes", "qwen3_coder")
"""With JSON arguments, and with arguments in tags."""


class MeasuredLoop(asyncio.SelectorEventLoop):
    """A loop that records its longest turn, in seconds of its thread's processor time."""

    longest = 0.0

    def _run_once(self) -> None:
        begun = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.longest = max(self.longest, time.thread_time() - begun)


class Measured:
    """An application in a thread of its own."""

    def __init__(self, served: Served, loop: MeasuredLoop) -> None:
        self._url = served.url
        self._loop = loop

    async def hold(self, kind: Kind, size: int, **headers: str) -> tuple[float, int]:
        """The longest turn of the loop for one request, and the status of the answer."""
        return await self.hold_body(kind.path, kind.body(size), **headers)

    async def hold_body(self, path: str, body: bytes, **headers: str) -> tuple[float, int]:
        async with ClientSession(self._url) as http:
            self._loop.longest = 0.0
            async with http.post(path, data=body, headers=headers) as response:
                await response.read()
                return self._loop.longest, response.status


def settle() -> None:
    """As services do when they are ready: a test process has a hundred times their objects."""
    gc.collect()
    gc.freeze()


@contextmanager
def measured(family: str = FAMILIES[0]) -> Iterator[Measured]:
    settle()
    loop = MeasuredLoop()
    ready: list[Measured] = []
    started, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        gateway = FakeGateway(
            cards=[replace(CARD, family=family, features=["guided", "grammar", "strict"])]
        )
        async with serving(gateway, FrontendConfig()) as served:
            ready.append(Measured(served, loop))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.Runner(loop_factory=lambda: loop).run(serve()))
    thread.start()
    assert started.wait(LIMIT_S)
    try:
        yield ready[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


ONCE_SLOW = (
    "chat many small grammars",
    "chat many anchors grammars",
    "chat calls",
    "chat allowed",
    "chat deep [] schema",
    "messages additions",
    "messages hosted results",
    "responses small grammars",
    "responses allowed",
)
"""Kinds that once held the loop: with work for each grammar, and for each pair of parts."""


@pytest.mark.parametrize("name", ONCE_SLOW)
async def test_request_below_the_size_for_threads_does_not_hold_the_loop(name: str) -> None:
    (kind,) = (kind for kind in KINDS if kind.name == name)
    with measured() as server:
        seconds, status = await server.hold(kind, ON_LOOP)
        assert seconds < SLACK * HOLD_S, f"{seconds:.3f} s, status {status}"
        assert status < 500


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("path", sorted({kind.path for kind in KINDS}))
async def test_request_does_not_hold_the_loop(path: str, family: str, cases: Cases) -> None:
    with measured(family) as server:
        for kind in KINDS:
            if kind.path != path:
                continue
            settle()
            for size in (16 * 1024, 60 * 1024, ON_LOOP, 2 * ON_LOOP):
                with cases.case(kind=kind.name, size=size):
                    seconds, status = await server.hold(kind, size)
                    assert seconds < SLACK * HOLD_S, f"{seconds:.3f} s, status {status}"
                    assert status < 500


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", zlib.compress(b" " * (60 << 20), wbits=31)[:30_000]),
        ("deflate", zlib.compress(b" " * (30 << 20))),
        ("zstd", zstandard.compress(b" " * (60 << 20))),
        ("br", brotli.compress(b" " * (60 << 20), quality=1)),
    ],
)
async def test_small_body_that_decodes_to_a_large_one_does_not_hold_the_loop(
    encoding: str, body: bytes
) -> None:
    assert len(body) < THREAD_FROM_BYTES
    with measured() as server:
        seconds, status = await server.hold_body(
            "/v1/messages", body, **{"content-encoding": encoding}
        )
        assert seconds < SLACK * HOLD_S
        assert status == 400


def test_gzip_of_many_members_is_decoded_in_linear_time() -> None:
    """One member of 32 MB and a thousand small ones, which once copied the whole each time."""
    body = gzip.compress(b" " * (32 << 20)) + gzip.compress(b" ") * 1000
    begun = time.thread_time()
    assert len(decode(body, "gzip", 64 << 20)) == (32 << 20) + 1000
    assert time.thread_time() - begun < 3


async def test_deep_chain_of_rules_is_refused() -> None:
    """llguidance overflows the stack at a chain of some thousand rules, which ends the process."""
    with measured() as server:
        kind = next(kind for kind in KINDS if kind.name == "chat few too deep grammars")
        _, status = await server.hold(kind, 60 * 1024)
        assert status == 400


def test_body_of_more_values_than_any_model_reads_is_refused() -> None:
    for part in (b"{}", b"[]", b"1"):
        body = b'{"model":"m","messages":[' + b",".join([part] * (MAX_VALUES + 2)) + b"]}"
        with pytest.raises(Invalid, match="more than"):
            Chat().parse(body, {})
