"""The choice of worker and parser of a turn, and the encoding of its request."""

from types import SimpleNamespace
from typing import Any

import pytest

from schemas.control import Heartbeat, Load, ModelCard
from schemas.conversation import Client, Conversation, Hints
from schemas.errors import NotFound, Overloaded, Unavailable
from schemas.requests import TurnRequest
from schemas.token_ids import pack_ids
from services.preprocessor.routing.kv_view import KvView
from services.preprocessor.routing.placement import Assignment, Placement
from services.preprocessor.routing.router import Router, TurnProfile
from services.preprocessor.turn_builder import MAX_PRIORITY, priority
from tests.kit.processes import MakeProcess, Reported
from tests.kit.waiting import eventually


def worker(process: str, running: int = 0, *, slots: int = 4, **more: Any) -> Heartbeat:
    return Heartbeat("worker", process, load=Load(running=running, slots=slots, **more))


def make_router(overlap_weight: float = 1.0, load_tokens: float = 16384.0) -> Router:
    return Router(overlap_weight, load_tokens, waiting={})


def ask(
    router: Router, beats: list[Heartbeat], avoid: tuple[str, ...] = (), late: tuple[str, ...] = ()
) -> list[str]:
    return router.rank_workers(beats, avoid=avoid, late=late, profile=TurnProfile())


def test_worker_with_the_most_room_comes_first() -> None:
    beats = [worker("a", 3), worker("b", 1), worker("c", 3, slots=100)]
    assert ask(make_router(), beats) == ["c", "b", "a"]


def test_simultaneous_turns_are_spread() -> None:
    router, beats = make_router(), [worker("a", slots=100), worker("b", slots=100)]
    for _ in range(8):
        router.assign(ask(router, beats)[0])
    assert ask(router, beats) == ["a", "b"]
    router.assign("a")
    assert ask(router, beats) == ["b", "a"]
    router.unassign("a")
    router.unassign("b")
    assert ask(router, beats) == ["b", "a"]


def test_avoided_and_late_workers_come_last() -> None:
    beats = [worker("a"), worker("b", 1), worker("c", 2)]
    assert ask(make_router(), beats, avoid=("a",), late=("b",)) == ["c", "b", "a"]


def test_missing_and_full_workers_are_different_errors() -> None:
    with pytest.raises(Unavailable):
        ask(make_router(), [])
    full = worker("a", 4, waiting=2, queue_limit=2)
    with pytest.raises(Overloaded) as refused:
        ask(make_router(), [full])
    assert refused.value.info.retry_after_s
    assert ask(make_router(), [full, worker("b", 4, waiting=1, queue_limit=2)]) == ["b"]


def test_shard_with_the_fewest_turns_is_chosen() -> None:
    router = make_router()
    shards = [
        Heartbeat("parser", "p", load=Load(running=2)),
        Heartbeat("parser", "q", load=Load(running=1)),
    ]
    assert router.choose_parser(shards, late=()) == "q"
    assert router.choose_parser(shards, late=("q",)) == "p"
    router.assign("q")
    router.assign("q")
    assert router.choose_parser(shards, late=()) == "p"
    with pytest.raises(Unavailable):
        router.choose_parser([], late=())


def placed(
    beats: list[Heartbeat], router: Router | None = None, osl: int | None = None, **held: int
) -> str:
    """The worker of a prompt of 50,000 tokens."""
    loadable = {name[0]: held.pop(name) for name in list(held) if name.endswith("_slow")}
    profile = TurnProfile(50_000, held, osl, loadable)
    return (router or make_router()).rank_workers(beats, avoid=(), late=(), profile=profile)[0]


def test_worker_that_holds_the_prompt_comes_first() -> None:
    beats = [worker("a", 1, slots=100), worker("b", 3, slots=100)]
    assert placed(beats, b=48_000) == "b"
    assert placed(beats, a=48_000, b=48_000) == "a"
    assert placed(beats, b=96) == "a"


def test_offloaded_prompt_is_better_than_none_and_worse_than_a_cached_one() -> None:
    beats = [worker("a", 1, slots=100), worker("b", 3, slots=100)]
    router = Router(1.0, 16384.0, waiting={}, offload_weight=0.2)
    assert placed(beats, router, b_slow=48_000) == "b"
    assert placed(beats, router, a=48_000, b_slow=48_000) == "a"
    assert placed(beats, router, b=1_000, a_slow=49_000, b_slow=49_000) == "b"
    assert router.cost(beats[0], TurnProfile(1_000, {"a": 500}, None, {"a": 9_000})) == (
        router.cost(beats[0], TurnProfile(1_000, {"a": 900}))
    )
    assert placed(beats, make_router(), a=100, b_slow=48_000) == "b"


def test_load_outweighs_a_small_overlap_and_not_a_large_one() -> None:
    beats = [worker("a", 0, slots=4), worker("b", 4, slots=4, queue_limit=8)]
    assert placed(beats, b=10_000) == "a"
    assert placed(beats, b=40_000) == "b"
    assert placed(beats, make_router(load_tokens=100_000), b=40_000) == "a"
    assert placed(beats, make_router(overlap_weight=0), b=50_000) == "a"


def test_priority_keeps_its_fraction_and_bounds() -> None:
    background = Client(kind="background")
    for hints, client, expected in (
        (Hints(), Client(), 0),
        (Hints(latency_sensitivity=0.9), Client(), 0.9),
        (Hints(priority=-2, latency_sensitivity=5.0), Client(), -2),
        (Hints(), background, -1),
        (Hints(priority=1), background, 1),  # what a client asks for wins
        (Hints(latency_sensitivity=1e300), Client(), MAX_PRIORITY),
    ):
        assert priority(Conversation("m", [], hints=hints, client=client)) == expected


async def test_blocks_of_other_weights_do_not_count(make_process: MakeProcess) -> None:
    """A worker that has taken a prompt is expected to hold it, for its version only; any, for
    prompts that may reuse those of all versions."""
    preprocessor = await make_process("preprocessor", "weights-p")
    kv = KvView(preprocessor, "m")
    kv.follow()
    placement = Placement(preprocessor, "m", make_router(), kv)
    worker = await make_process("worker", "weights-w")
    prompt = pack_ids(range(64))

    async def at(version: int) -> None:
        card = ModelCard("m", block_tokens=16, features=["salt"], weights_version=version)
        worker.serve(Reported(card))
        worker.heartbeats.send()

        def arrived() -> bool:
            heartbeat = preprocessor.registry.get("worker", worker.id)
            return heartbeat is not None and heartbeat.models == [card]

        await eventually(arrived)

    def held(any_weights: bool) -> int | None:
        conversation = Conversation("m", [], hints=Hints(any_weights=any_weights))
        return placement.cached_tokens(worker.id, prompt, conversation)

    def take(any_weights: bool) -> None:
        conversation = Conversation("m", [], hints=Hints(any_weights=any_weights))
        request = TurnRequest("t", "f", conversation)
        turn: Any = SimpleNamespace(request=request, block_key_ids=prompt)
        salt = placement.cache_salt(conversation)
        placement.record_accepted(Assignment(worker.id, "p", salt), turn)

    await at(1)
    take(any_weights=False)
    assert (held(False), held(True)) == (64, 0)
    await at(2)
    assert (held(False), held(True)) == (0, 0)
    take(any_weights=True)
    assert (held(False), held(True)) == (0, 64)
    await at(3)
    assert (held(False), held(True)) == (0, 64)


async def test_turn_with_an_adapter_goes_to_a_worker_that_has_it(make_process: MakeProcess) -> None:
    preprocessor = await make_process("preprocessor", "adapters-p")
    placement = Placement(preprocessor, "m", make_router(), KvView(preprocessor, "m"))
    for name, adapters in (("sql", ["sql"]), ("docs", ["docs"]), ("none", [])):
        worker = await make_process("worker", f"adapters-{name}")
        worker.serve(Reported(ModelCard("m", adapters=adapters)))
        worker.heartbeats.send()
    await eventually(lambda: len(preprocessor.registry.able("worker", "m")) == 3)

    def ranked(adapter: str) -> list[str]:
        conversation = Conversation("m", [], adapter=adapter)
        turn: Any = SimpleNamespace(request=TurnRequest("t", "f", conversation))
        return placement.rank_workers(turn, {})

    for adapter in ("sql", "docs"):
        (chosen,) = ranked(adapter)
        assert chosen.startswith(f"adapters-{adapter}")
    with pytest.raises(NotFound):
        ranked("other")
