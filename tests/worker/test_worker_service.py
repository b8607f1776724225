"""The worker on the bus: deadlines, and turns that continue after an ended thought."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest

from schemas.conversation import Sampling
from schemas.errors import ENGINE_DIED, EngineFailed, ErrorKind, Invalid
from schemas.events import FinishReason
from schemas.requests import GenerateReply, PrefillNotice, ThoughtBudget
from schemas.token_ids import pack_ids
from services.runtime.process import Process
from services.worker.engine import EngineDelta, EngineDied, EngineRequest, Handle, Sink
from services.worker.kv.judge import MOST_WRONG
from services.worker.kv_events import BlocksStored, GroupStored, KvEvent, LayerGroup
from services.worker.retention import MIN_TOKENS
from tests.kit.processes import MakeProcess
from tests.kit.waiting import eventually
from tests.kit.worker import VOCABULARY, HeldEngine, WorkerTrial

NOTICES = "_INBOX_test.notices"


class Trial(WorkerTrial):
    """A worker with an engine that waits for the test."""

    def __init__(self, worker: Process, shard: Process) -> None:
        super().__init__(worker, shard)
        self.engine: HeldEngine = HeldEngine()
        self.notices: list[PrefillNotice] = []

    async def generate(self, turn: str, timeout_s: float | None, **more: Any) -> GenerateReply:
        return await self.send(self.request(turn, timeout_s=timeout_s, **more))


@pytest.fixture
async def idle(make_process: MakeProcess, request: pytest.FixtureRequest) -> AsyncIterator[Trial]:
    """A worker that has not started."""
    name = request.node.name
    shard = await make_process("parser", f"{name}-p")
    trial = Trial(await make_process("worker", f"{name}-w"), shard)
    yield trial
    await trial.engine.stop(1.0)


@pytest.fixture
async def trial(idle: Trial) -> Trial:
    idle.engine.features |= {"prefix_cache", "salt"}
    await idle.shard.subscribe(
        NOTICES,
        lambda delivery: idle.notices.append(
            msgspec.json.decode(delivery.data, type=PrefillNotice)
        ),
    )
    await idle.start(idle.engine, await idle.engine.start())
    return idle


async def test_late_work_is_refused_and_a_stop_id_that_the_engine_lacks_is_left_out(
    trial: Trial,
) -> None:
    """A tokenizer may have more ids than the weights have rows. Engines use stop ids as indexes of
    a token's scores."""
    reply = await trial.generate("late", -1.0)
    assert reply.error is not None
    assert reply.error.kind is ErrorKind.TIMED_OUT
    assert (await trial.generate("t", None, stop_ids=[2, VOCABULARY - 1, VOCABULARY])).error is None
    assert [request.stop_ids for request in trial.engine.requests] == [[2, VOCABULARY - 1]]


async def test_a_turn_that_waits_is_dropped_at_its_deadline_and_one_that_decodes_is_not(
    trial: Trial,
) -> None:
    assert (await trial.generate("decodes", 0.3)).error is None
    trial.engine.open_turns["decodes.1"].put(EngineDelta([7], cached=0))
    assert (await trial.generate("waits", 0.3)).error is None
    end = await trial.end_of("waits")
    assert end.finish is not None
    assert end.finish.error is not None
    assert end.finish.error.kind is ErrorKind.TIMED_OUT
    assert list(trial.engine.open_turns) == ["decodes.1"]


async def test_notice_follows_the_first_token_of_a_prompt_that_was_computed(trial: Trial) -> None:
    reply = await trial.generate("t", None, notice=NOTICES, notice_tokens=3)
    assert reply.expected_cached == 0
    assert (await trial.generate("u", None)).expected_cached == 0, "the other turn only computes it"
    assert not trial.notices
    for token in (7, 8):
        trial.engine.open_turns["t.1"].put(EngineDelta([token], cached=0))
    await eventually(lambda: bool(trial.notices))
    assert (await trial.generate("v", None, notice=NOTICES, notice_tokens=2)).expected_cached == 2
    trial.engine.open_turns["v.1"].put(
        EngineDelta([7], finish=FinishReason.STOP, stop_id=2, cached=2)
    )
    await trial.end_of("v")
    for process in (trial.worker, trial.shard):
        await process.bus.flush()
    assert trial.notices == [PrefillNotice("t", True)], "one token of v was new"


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


async def test_nobody_waits_for_a_turn_of_a_model_with_states(idle: Trial) -> None:
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


async def test_wrong_predictions_are_counted_and_end(idle: Trial) -> None:
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


async def test_prompts_are_retained_within_their_tenants_share(idle: Trial) -> None:
    idle.engine.features |= {"retention"}
    info = msgspec.structs.replace(await idle.engine.start(), kv_tokens=5 * MIN_TOKENS)
    await idle.start(idle.engine, info)
    for turn, tenant, session in (("t", "a", "s"), ("u", "a", "r"), ("v", "b", "s")):
        await idle.generate(turn, None, tenant=tenant, session=session, retain_s=300)
    retained = [(one.session, one.retain_s) for one in idle.engine.requests]
    assert retained == [("s", 300), ("r", 0), ("s", 300)]


SPELLING = {"<": pack_ids([50]), ">": pack_ids([60])}


def budget_of(tokens: int, grammar: str = "") -> ThoughtBudget:
    """A budget of a turn that begins in a thought; 60 ends it."""
    end = pack_ids([61, 60])
    return ThoughtBudget(
        tokens, SPELLING, ["<"], [">"], [">"], end, end, in_reasoning=True, grammar=grammar
    )


async def test_turn_continues_in_its_stream_after_an_ended_thought(trial: Trial) -> None:
    budget = budget_of(3, "rest")
    sampling = Sampling(max_tokens=10, min_tokens=4, seed=1)
    own = {"priority": 2.0, "cache_salt": "s", "stop_ids": [2, 9]}
    await trial.generate("t", None, thought_budget=budget, sampling=sampling, **own)
    first = trial.engine.open_turns["t.1"]
    first.put(EngineDelta([11], cached=0))
    first.put(EngineDelta([12, 13, 14]))
    assert first.ended, "the engine is stopped at once"
    await eventually(lambda: len(trial.engine.requests) == 2)
    before, request = trial.engine.requests
    assert list(request.token_ids) == [1, 2, 3, 11, 12, 13, 61, 60]
    assert (request.resumed, request.sampling.max_tokens, request.sampling.min_tokens) == (5, 5, 0)
    assert request.sampling.logit_bias == {50: -100.0}, "no other thought opens"
    assert (request.cache_salt, request.stop_ids, request.sampling.seed) == ("s", [2, 9], 1)
    assert request.id != before.id
    assert request.priority > before.priority, "it had a slot"
    assert request.rest_grammar == "", "this engine has no grammars"
    trial.engine.open_turns[request.id].put(EngineDelta([21], cached=8))
    trial.engine.open_turns[request.id].put(EngineDelta([22], finish=FinishReason.STOP, stop_id=2))
    await trial.end_of("t")
    entries = [entry for entry in trial.entries if entry.turn == "t"]
    assert trial.ids("t") == [11, 12, 13, 61, 60, 21, 22]
    assert {entry.cached for entry in entries} <= {None, 0}, (
        "the cached part of the prompt, not of the turn so far"
    )


class GrammarlessEngine(HeldEngine):
    """Says that it has grammars, and refuses each."""

    def open(self, request: EngineRequest, sink: Sink) -> Handle:
        self.refuses = Invalid("the tools cannot be kept to") if request.grammar else None
        return super().open(request, sink)


async def test_turn_runs_without_a_refused_grammar_unless_something_is_promised(
    idle: Trial,
) -> None:
    idle.engine = GrammarlessEngine()
    idle.engine.features |= {"grammar"}
    await idle.start(idle.engine, await idle.engine.start())
    promised = await idle.generate("promised", None, grammar="start: x")
    assert promised.error is not None
    assert promised.error.kind is ErrorKind.INVALID
    free = await idle.generate("free", None, grammar="start: x", optional_grammar=True)
    assert free.error is None
    idle.engine.open_turns["free.1"].put(EngineDelta([11], finish=FinishReason.STOP, stop_id=2))
    await idle.end_of("free")
    assert idle.ids("free") == [11]


async def test_turn_that_fails_at_its_budget_is_not_continued(trial: Trial) -> None:
    errors = {"dead": EngineDied("gone"), "failed": EngineFailed("no room")}
    for turn, error in errors.items():
        await trial.generate(turn, None, thought_budget=budget_of(1))
        trial.engine.refuses = error
        trial.engine.open_turns[f"{turn}.1"].put(EngineDelta([11, 12], cached=0))
        end = await trial.end_of(turn)
        trial.engine.refuses = None
        assert end.finish is not None
        assert end.finish.error is not None
        assert end.finish.error.message == error.info.message
        assert (end.finish.error.code == ENGINE_DIED) is (turn == "dead")


async def test_resumed_turn_with_a_spent_budget_opens_no_thought(trial: Trial) -> None:
    """And one that was lost within the end of its thought gets the rest of it."""
    for turn, tokens, resume in (
        ("t", 3, [11, 12, 13, 61, 60, 21]),
        ("u", 4, [11, 12, 13, 60, 21]),
        ("v", 3, [11, 12, 13, 61]),
    ):
        budget, resumed = budget_of(tokens), pack_ids(resume)
        await trial.generate(turn, None, thought_budget=budget, resume=resumed)
    requests = trial.engine.requests
    assert [bool(request.sampling.logit_bias) for request in requests] == [True, False, True]
    assert list(requests[2].token_ids) == [1, 2, 3, 11, 12, 13, 61, 60]
    assert (requests[2].resumed, requests[2].sampling.max_tokens) == (5, 5)
