"""No request holds the frontend's event loop: the processor time of one turn of the loop has a
limit, whatever a client sends. Processor time, because a busy machine must not fail these tests."""

import asyncio
import gc
import gzip
import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

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
from tests.kit.bodies import (
    CHAT,
    MESSAGES,
    RESPONSES,
    Json,
    assistant,
    block,
    chat,
    chat_call,
    message,
    messages,
    responses,
    tool_use,
    user,
)
from tests.kit.every import Cases
from tests.kit.frontend import CARD, FakeGateway, Served, serving
from tests.kit.waiting import LIMIT_S

Part: TypeAlias = Callable[[int], Any]
Wrap: TypeAlias = Callable[[list[Any]], Json]
HOLD_S = 0.05
"""Limit of one turn of the loop on an idle machine."""
SLACK = 5.0
"""Processor time on a machine in which other processes use the caches and the second thread of a
core."""
ON_LOOP = PARSE_IN_THREAD_FROM_BYTES - 4096


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

    async def hold(self, path: str, body: bytes, **headers: str) -> tuple[float, int]:
        """The longest turn of the loop for one request, and the status of the answer."""
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
def measured() -> Iterator[Measured]:
    settle()
    loop = MeasuredLoop()
    ready: list[Measured] = []
    started, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        gateway = FakeGateway(
            cards=[replace(CARD, family="hermes", features=["guided", "grammar", "strict"])]
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


def body_of(part: Part, wrap: Wrap, size: int) -> bytes:
    """A body of about `size` bytes: a request with many parts of one kind."""

    def compact(value: Any) -> bytes:
        return json.dumps(value, separators=(",", ":")).encode()

    low, high = (len(compact(part(i))) + 1 for i in (10, 1_000_000))
    number = size // ((low + high) // 2)
    return compact(wrap([part(i) for i in range(max(number, 1))]))


def chat_grammar(syntax: str, definition: str, i: int) -> Json:
    form = block("grammar", grammar={"syntax": syntax, "definition": definition})
    return block("custom", custom={"name": f"c{i}", "format": form})


def small_grammar(i: int) -> Json:
    return chat_grammar("regex", f"[a-z]{{{i + 2000}}}x", i)


def deep_chain(i: int) -> Json:
    """A grammar of rules that each name the next one."""
    rules = "".join(f"r{j}: r{j + 1}\n" for j in range(5000))
    return chat_grammar("lark", f'start: r0 "{i}"\n{rules}r5000: "x"', i)


def chat_function(i: int) -> Json:
    return {"function": {"name": f"f{i}", "parameters": {}}}


def allowed_of_chat(tools: list[Any]) -> Json:
    names = [{"function": {"name": f"f{i}"}} for i in range(len(tools))]
    choice = block("allowed_tools", allowed_tools={"mode": "auto", "tools": names})
    return chat(tools=tools, tool_choice=choice)


def deep_schema(inner: list[Any]) -> Json:
    value: Any = inner
    for _ in range(50):
        value = {"type": "array", "items": value}
    schema = {"type": "object", "properties": {"a": value}}
    return chat(tools=[{"function": {"name": "f", "parameters": schema}}])


def addition(i: int) -> Json:
    definition = block("tool_definition", definition={"name": f"f{i}", "input_schema": {}})
    return block("tool_addition", tool=definition)


def hosted_result(i: int) -> Json:
    return block("web_search_tool_result", tool_use_id=f"srvc{i}", content=[])


def hosted_results(results: list[Any]) -> Json:
    half = len(results) // 2
    calls = assistant(*(tool_use(f"c{i}", "f") for i in range(half)))
    return messages(user("a"), calls, assistant(*results[:half]))


def responses_function(i: int) -> Json:
    return block("function", name=f"f{i}")


def allowed_of_responses(tools: list[Any]) -> Json:
    names = [block("function", namespace="n", name=f"f{i}") for i in range(len(tools))]
    choice = block("allowed_tools", tools=names)
    return responses(tools=[block("namespace", name="n", tools=tools)], tool_choice=choice)


KINDS: dict[str, tuple[str, Part, Wrap]] = {
    "many small grammars": (CHAT.path, small_grammar, lambda all: chat(tools=all)),
    "calls": (
        CHAT.path,
        lambda i: chat_call(f"c{i}", "f"),
        lambda all: chat({"role": "assistant", "tool_calls": all}),
    ),
    "allowed of chat": (CHAT.path, chat_function, allowed_of_chat),
    "deep schema": (CHAT.path, lambda _: [], deep_schema),
    "additions": (
        MESSAGES.path,
        addition,
        lambda all: messages(user("a"), message("system", *all)),
    ),
    "hosted results": (MESSAGES.path, hosted_result, hosted_results),
    "allowed of responses": (RESPONSES.path, responses_function, allowed_of_responses),
}
"""Kinds that once held the loop: with work for each grammar, and for each pair of parts."""


async def test_request_below_the_size_for_threads_does_not_hold_the_loop(cases: Cases) -> None:
    with measured() as server:
        for name, (path, part, wrap) in KINDS.items():
            settle()
            with cases.case(name):
                seconds, status = await server.hold(path, body_of(part, wrap, ON_LOOP))
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
        seconds, status = await server.hold("/v1/messages", body, **{"content-encoding": encoding})
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
        body = body_of(deep_chain, lambda all: chat(tools=all), 60 * 1024)
        _, status = await server.hold(CHAT.path, body)
        assert status == 400


def test_body_of_more_values_than_any_model_reads_is_refused() -> None:
    for part in (b"{}", b"1"):
        body = b'{"model":"m","messages":[' + b",".join([part] * (MAX_VALUES + 2)) + b"]}"
        with pytest.raises(Invalid, match="more than"):
            Chat().parse(body, {})
