"""The worker on the bus: refusals, deadlines, predictions and retention."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from prometheus_client import generate_latest

from schemas.conversation import Sampling
from schemas.errors import ErrorKind, Invalid
from schemas.events import FinishReason
from services.worker.engine import EngineDelta
from services.worker.kv.events import BlocksStored, GroupStored, KvEvent, LayerGroup
from services.worker.kv.judge import MOST_WRONG
from services.worker.retention import MIN_TOKENS
from tests.kit.waiting import eventually
from tests.kit.worker import NOTICES, VOCABULARY, HeldEngine, HeldTrial


async def test_late_work_is_refused_and_a_stop_id_that_the_engine_lacks_is_left_out(
    trial: HeldTrial,
) -> None:
    """A tokenizer may have more ids than the weights have rows. Engines use stop ids as indexes of
    a token's scores."""
    reply = await trial.generate("late", -1.0)
    assert reply.error is not None
    assert reply.error.kind is ErrorKind.TIMED_OUT
    assert (await trial.generate("t", None, stop_ids=[2, VOCABULARY - 1, VOCABULARY])).error is None
    assert [request.stop_ids for request in trial.engine.requests] == [[2, VOCABULARY - 1]]


async def test_a_turn_that_waits_is_dropped_at_its_deadline_and_one_that_decodes_is_not(
    trial: HeldTrial,
) -> None:
    assert (await trial.generate("decodes", 0.3)).error is None
    trial.engine.open_turns["decodes.1"].put(EngineDelta([7], cached=0))
    assert (await trial.generate("waits", 0.3)).error is None
    end = await trial.end_of("waits")
    assert end.finish is not None
    assert end.finish.error is not None
    assert end.finish.error.kind is ErrorKind.TIMED_OUT
    assert list(trial.engine.open_turns) == ["decodes.1"]


class EngineWithEvents(HeldEngine):
    """An engine that reports these blocks."""

    def __init__(self, *events: KvEvent) -> None:
        super().__init__()
        self.features |= {"prefix_cache", "kv_events"}
        self._events = events

    async def kv_events(self) -> AsyncGenerator[KvEvent, None]:
        for event in self._events:
            yield event
        await asyncio.Event().wait()


async def test_nobody_waits_for_a_turn_of_a_model_with_states(idle: HeldTrial) -> None:
    """What it computes is of use only to prompts that contain all of it."""
    first, second = (1, [1, 2]), (2, [3, 4])
    states = LayerGroup(1, 2, needed=1)
    idle.engine = EngineWithEvents(GroupStored(states, [2]), BlocksStored(None, [first, second]))
    await idle.start(idle.engine, await idle.engine.start())
    for turn, prompt in enumerate([[1, 2, 3, 4, 5], [1, 2, 3, 5, 5]]):
        reply = await idle.send(idle.request(str(turn), prompt, notice=NOTICES, notice_tokens=1))
        assert reply.expected_cached is None
    await eventually(lambda: len(idle.entries) == 2)
    assert [entry.expected_cached for entry in idle.entries] == [4, 0]


async def test_wrong_predictions_are_counted_and_end(idle: HeldTrial) -> None:
    idle.engine = EngineWithEvents(BlocksStored(None, [(1, [1, 2]), (2, [3, 4])]))
    service = await idle.start(idle.engine, await idle.engine.start())
    idle.worker.serve(service)
    for turn in range(MOST_WRONG + 2):
        await idle.send(idle.request(str(turn), [1, 2, 3, 4, 5]))
        idle.engine.open_turns[f"{turn}.1"].put(
            EngineDelta([7], cached=0, finish=FinishReason.STOP, stop_id=2)
        )
        await idle.end_of(str(turn))
    expected = [entry.expected_cached for entry in idle.entries if entry.at == 0 and not entry.ids]
    assert [*filter(None, expected)] == [4] * (MOST_WRONG + 1)
    assert [card.block_tokens for card in service.models] == [0]
    metrics = generate_latest(idle.worker.metrics).decode()
    assert f"turnwire_kv_missed_tokens_total {4.0 * (MOST_WRONG + 1)}" in metrics


async def test_prompts_are_retained_within_their_tenants_share(idle: HeldTrial) -> None:
    idle.engine.features |= {"retention"}
    info = msgspec.structs.replace(await idle.engine.start(), kv_tokens=5 * MIN_TOKENS)
    await idle.start(idle.engine, info)
    for turn, tenant, session in (("t", "a", "s"), ("u", "a", "r"), ("v", "b", "s")):
        await idle.generate(turn, None, tenant=tenant, session=session, retain_s=300)
    retained = [(one.session, one.retain_s) for one in idle.engine.requests]
    assert retained == [("s", 300), ("r", 0), ("s", 300)]


async def test_refused_turns_retain_nothing(idle: HeldTrial) -> None:
    """By the worker's checks, by the engine, and because the worker is busy."""
    idle.engine.features |= {"retention"}
    info = msgspec.structs.replace(await idle.engine.start(), kv_tokens=5 * MIN_TOKENS)
    await idle.start(idle.engine, info)

    async def generate(session: str, **more: Any) -> bool:
        fields = {"tenant": "a", "session": session, "retain_s": 300, **more}
        return (await idle.generate(session, None, **fields)).error is None

    assert not await generate("unchecked", sampling=Sampling(max_tokens=10, min_p=0.1))
    idle.engine.refuses = Invalid("no")
    assert not await generate("refused")
    idle.engine.refuses = None
    assert await generate("plain", retain_s=0)
    assert not await generate("prefill", parser="")
    assert await generate("opened")
    assert await generate("over the share")
    retained = [(one.session, one.retain_s) for one in idle.engine.requests]
    assert retained[1:] == [("plain", 0), ("opened", 300), ("over the share", 0)]
