"""What each stage records of a turn, in one event loop; test_pipeline_tracing.py is the same over
processes and HTTP."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from structlog.typing import FilteringBoundLogger

from tests.kit.counting import Model, Plan
from tests.kit.local import Local
from tests.kit.nats import NatsServer
from tests.kit.otlp import Receiver, Trace, receiving


class Traced(Local):
    """A pipeline in real time that exports its spans."""

    receiver: Receiver

    async def trace_of(self, turn: str, *names: str) -> Trace:
        """The trace of a turn, once it has these spans: the last one of each process, which exports
        its own in order."""

        def roots() -> list[str]:
            spans = self.receiver.spans
            return [span.trace for span in spans if span.attributes.get("turnwire.turn") == turn]

        def complete(_: object) -> bool:
            return bool(roots()) and Counter(names) <= Counter(self.receiver.of(roots()[0]).names)

        await asyncio.to_thread(self.receiver.wait, "", complete)
        return self.receiver.of(roots()[0])


@pytest.fixture
async def traced(
    local_nats: NatsServer,
    counting_model: Model,
    quiet_log: FilteringBoundLogger,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Traced]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    pipeline = Traced(local_nats, counting_model, quiet_log)
    with receiving() as pipeline.receiver:
        url = pipeline.receiver.url
        await pipeline.start(workers=2, tracing=True, otlp_endpoint=url)
        yield pipeline
        await pipeline.stop()


async def test_a_worker_that_dies_begins_another_attempt(traced: Traced) -> None:
    turn = traced.turn(Plan(length=30, hold_at=10, cached=0))
    worker = await traced.begun(turn)
    await turn.task
    await worker.kill()
    traced.plans[turn.id].hold_at = None
    await turn.whole(30, switches=1)
    found = await traced.trace_of(turn.id, "retry", "decode", "parse", "parse", "place", "place")
    (root,) = found.children(None)
    retry = found.one("retry")
    assert retry.links == [root.id]
    ((event, details),) = root.events
    assert (event, details["turnwire.reason"]) == ("turnwire.attempt_ended", "worker lost")
    assert details["turnwire.worker"] == worker.id
    assert {span.attributes["turnwire.attempt"] for span in found.children(retry)} == {2}
    children = [span.name for span in found.children(retry) if span.name != "parse"]
    assert children == ["prepare", "place", "prefill", "decode"], "this engine reports no queue"
    assert found.one("decode").attributes["turnwire.resumed_tokens"] > 0
    parses = [span for span in found.spans if span.name == "parse"]
    assert sorted("turnwire.interrupted" in span.attributes for span in parses) == [False, True]
    assert not root.failed
    blocks = [span.name for span in found.children(root) if span.name in ("reasoning", "text")]
    assert blocks == ["reasoning", "text"]
