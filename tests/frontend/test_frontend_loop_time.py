"""No request holds the frontend's event loop: the processor time of one turn of the loop, and of
decoding a body, has a limit, whatever a client sends. Processor time, because a busy machine must
not fail these tests."""

import asyncio
import gc
import json
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec.structs import replace

from services.frontend.http.bodies import PARSE_IN_THREAD_FROM_BYTES
from tests.kit.bodies import CHAT, MESSAGES, Json, assistant, block, chat, messages, tool_use, user
from tests.kit.every import Cases
from tests.kit.frontend import CARD, FakeGateway, serving

Part: TypeAlias = Callable[[int], Any]
Wrap: TypeAlias = Callable[[list[Any]], Json]
HOLD_S = 0.5
"""Limit of one turn of the loop: ten times that on an idle machine, for one in which other
processes use the caches and the second thread of a core."""
TRIES = 3
"""What holds the loop does so each time. A virtual machine may count as a thread's time what its
host took from it."""
ON_LOOP = PARSE_IN_THREAD_FROM_BYTES - 4096


class MeasuredLoop(asyncio.SelectorEventLoop):
    """A loop that records its longest turn, in seconds of its thread's processor time."""

    longest = 0.0

    def _run_once(self) -> None:
        begun = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.longest = max(self.longest, time.thread_time() - begun)


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


def hosted_result(i: int) -> Json:
    return block("web_search_tool_result", tool_use_id=f"srvc{i}", content=[])


def hosted_results(results: list[Any]) -> Json:
    half = len(results) // 2
    calls = assistant(*(tool_use(f"c{i}", "f") for i in range(half)))
    return messages(user("a"), calls, assistant(*results[:half]))


KINDS: dict[str, tuple[str, Part, Wrap]] = {
    "many small grammars": (CHAT.path, small_grammar, lambda all: chat(tools=all)),
    "hosted results": (MESSAGES.path, hosted_result, hosted_results),
}
"""Kinds that once held the loop: with work for each grammar, and for each pair of parts."""


def test_body_below_the_size_for_threads_does_not_hold_the_loop(cases: Cases) -> None:
    loop = MeasuredLoop()

    async def send() -> None:
        card = replace(CARD, family="hermes", features=["guided", "grammar", "strict"])
        async with serving(FakeGateway(cards=[card])) as served:
            for name, (path, part, wrap) in KINDS.items():
                data = body_of(part, wrap, ON_LOOP)
                for _ in range(TRIES):
                    gc.collect()
                    gc.freeze()  # as services do: a test process has a hundred times their objects
                    loop.longest = 0.0
                    reply = await served.send("POST", path, data=data)
                    if loop.longest < HOLD_S:
                        break
                with cases.case(name):
                    assert loop.longest < HOLD_S, f"status {reply.status}"
                    assert reply.status < 500

    asyncio.Runner(loop_factory=lambda: loop).run(send())
