"""The choice of worker and parser of a turn, by loads and costs."""

from typing import Any

import pytest

from schemas.control import Heartbeat, Load
from schemas.errors import Overloaded, Unavailable
from services.preprocessor.routing.router import Router, TurnProfile


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


def test_turns_that_may_have_ended_refuse_nothing() -> None:
    """An agent sends its turns one after the other, ten within a heartbeat."""
    router, idle = make_router(), worker("a", slots=1, queue_limit=1)
    for _ in range(10):
        assert ask(router, [idle]) == ["a"]
        router.assign("a")
    full = worker("b", 1, slots=1, waiting=1, queue_limit=1)
    assert ask(router, [full, idle]) == ["a"]
    with pytest.raises(Overloaded):
        ask(router, [full])
    assert ask(router, [idle, worker("c", 1, slots=1, queue_limit=1)]) == ["c"], "it has room"


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
