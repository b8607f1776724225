"""What each stage records of a turn, in one event loop; test_pipeline_tracing.py is the same over
processes and HTTP."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from schemas.events import Failed
from tests.kit.counting import Plan
from tests.kit.local import Local
from tests.kit.otlp import Receiver, Trace, receiving

STEPS = ["strip", "render", "encode"]
"""This pipeline has no ledger."""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    with receiving() as running:
        yield running


@pytest.fixture
async def traced(real_local: Local, receiver: Receiver) -> Local:
    return await real_local.start(workers=2, tracing=True, otlp_endpoint=receiver.url)


async def trace_of(receiver: Receiver, turn: str, *names: str) -> Trace:
    """The trace of a turn, once it has these spans: the last one of each process, which exports its
    own in order."""

    def complete(_: object) -> bool:
        return bool(roots()) and Counter(names) <= Counter(receiver.of(roots()[0]).names)

    def roots() -> list[str]:
        return [
            span.trace for span in receiver.spans if span.attributes.get("turnwire.turn") == turn
        ]

    await asyncio.to_thread(receiver.wait, "", complete)
    return receiver.of(roots()[0])


async def test_a_turn_has_a_span_of_each_stage(traced: Local, receiver: Receiver) -> None:
    turn = traced.turn(Plan(length=5, cached=0))
    await turn.whole(5)
    found = await trace_of(receiver, turn.id, "decode", "parse", "place")
    (root,) = found.children(None)
    names = [span.name for span in found.children(root) if span.name != "parse"]
    assert names == ["prepare", "place", "prefill", "decode", "reasoning", "text"], (
        "this engine reports no queue"
    )
    assert found.names.count("parse") == 1
    assert [step for step, _ in found.one("prepare").events] == STEPS
    assert root.attributes["turnwire.worker"] in {worker.id for worker in traced.of("worker")}
    assert root.attributes["gen_ai.request.max_tokens"] == 100_000
    assert "gen_ai.request.temperature" not in root.attributes


async def test_a_worker_that_dies_begins_another_attempt(traced: Local, receiver: Receiver) -> None:
    turn = traced.turn(Plan(length=30, hold_at=10, cached=0))
    worker = await traced.begun(turn)
    await turn.task
    await worker.kill()
    traced.plans[turn.id].hold_at = None
    await turn.whole(30, switches=1)
    found = await trace_of(receiver, turn.id, "retry")
    (root,) = found.children(None)
    retry = found.one("retry")
    last = {"place", "decode", "parse"}
    found = await asyncio.to_thread(
        receiver.wait,
        root.trace,
        lambda trace: last <= {span.name for span in trace.children(retry)},
    )
    assert retry.links == [root.id]
    ((event, details),) = root.events
    assert (event, details["turnwire.reason"]) == ("turnwire.attempt_ended", "worker lost")
    assert details["turnwire.worker"] == worker.id
    assert {span.attributes["turnwire.attempt"] for span in found.children(retry)} == {2}
    (decode,) = (span for span in found.children(retry) if span.name == "decode")
    assert decode.attributes["turnwire.resumed_tokens"] > 0
    parses = [span for span in found.spans if span.name == "parse"]
    assert sorted(span.attributes.get("turnwire.interrupted", False) for span in parses) == [
        False,
        True,
    ]
    assert not root.failed
    children = [span.name for span in found.children(retry) if span.name != "parse"]
    assert children == ["prepare", "place", "prefill", "decode"]
    blocks = [span.name for span in found.children(root) if span.name in ("reasoning", "text")]
    assert blocks == ["reasoning", "text"]


async def test_a_cancelled_or_failed_turn_has_its_spans(traced: Local, receiver: Receiver) -> None:
    waiting = traced.turn(Plan(prefill_s=1000, cached=0))
    opened = await waiting.task
    await traced.begun(waiting)
    opened.cancel("hangup")
    found = await trace_of(receiver, waiting.id, "queue", "parse", "place")
    assert found.one("queue").attributes["turnwire.cancelled"] is True
    assert found.one("parse").attributes["turnwire.cancelled"] is True
    assert found.children(None)[0].attributes["turnwire.cancelled"] == "hangup"
    assert not any(span.failed for span in found.spans)
    failing = traced.turn(Plan(length=9, fail_at=6, cached=0))
    assert isinstance(await failing.finished(), Failed)
    found = await trace_of(receiver, failing.id, "decode", "parse")
    (root,) = found.children(None)
    for span in (root, found.one("decode"), found.one("parse")):
        assert (span.failed, span.attributes["error.type"]) == (True, "engine")
    assert found.one("text").attributes["turnwire.complete"] is False
