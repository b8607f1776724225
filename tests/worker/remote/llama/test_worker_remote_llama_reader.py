"""Answers of llama-server: tokens inside characters, and answers that are broken."""

from typing import Any

import pytest

from schemas.errors import EngineFailed
from schemas.events import FinishReason
from services.worker.engine import EngineDied
from tests.kit.engines import ids_of as output
from tests.worker.conformance import Bench
from tests.worker.fake_llama_server import FakeLlamaServer
from tests.worker.fake_server import Event, Lie, honest
from tests.worker.remote.llama.serving import FACE, HAN, WORDS


async def test_tokens_inside_characters_are_found_again(
    server: FakeLlamaServer, bench: Bench
) -> None:
    server.script = [*WORDS, *FACE, *FACE, 20, *HAN, 21]
    request = bench.request(max_tokens=len(server.script))
    assert await bench.ids(request) == server.script
    # A stop id among those that are not sent ends the turn there.
    deltas = await bench.run(bench.request(stop_ids=[FACE[1]]))
    assert (output(deltas), deltas[-1].stop_id) == ([*WORDS, FACE[0]], FACE[1])
    with pytest.raises(EngineFailed, match="the log probabilities of 2 tokens are not sent"):
        await bench.run(bench.request(logprobs=0))
    server.script = [*WORDS, FACE[0], 20]
    with pytest.raises(
        EngineFailed, match=r"1 tokens inside a character are not sent.* no reading"
    ):
        await bench.run(bench.request())


async def test_turn_ends_at_its_limit_also_inside_a_character(
    server: FakeLlamaServer, bench: Bench
) -> None:
    server.script = [*WORDS, *FACE]
    for limit in range(1, 7):
        deltas = await bench.run(bench.request(max_tokens=limit))
        assert (output(deltas), deltas[-1].finish) == (server.script[:limit], FinishReason.LENGTH)


async def test_tokens_that_are_lost_before_the_end_are_noticed(
    server: FakeLlamaServer, bench: Bench
) -> None:
    """As many as a character could have."""
    for lost in range(1, 4):
        server.lie = lambda events, least=24 - lost: (  # type: ignore[misc]
            [event for event in events if event["stop"] or event["tokens_predicted"] <= least]
        )
        with pytest.raises(EngineFailed, match="it stopped after 27 tokens, not all of which came"):
            await bench.run(bench.request(max_tokens=24))


def _with(**fields: Any) -> Lie:
    """Changes fields of the last event, and of those with tokens the ones that they have."""

    def lie(events: list[Event]) -> list[Event | bytes]:
        return [
            event | {name: fields[name] for name in fields if name in event} for event in events
        ]

    return lie


@pytest.mark.parametrize(
    ("lie", "script", "message"),
    [
        (_with(stop_type="word"), [20, 7], "it stopped at its own"),
        (_with(stop_type="none"), [20, 7], r"it stopped \(none\) without a stop token"),
        (_with(tokens_evaluated=7), (), "it counts 7 tokens in a prompt of 100"),
        (_with(tokens=None), (), "token ids or their numbers are missing"),
        (_with(tokens=[20, 21]), (), "its count grows by 1 with 2 tokens"),
        (lambda events: events * 2, (), "its count grows by 0 with 1 tokens"),
        (lambda events: [b"{"], (), "an event cannot be read"),
        (_with(content="t1 "), FACE, "2 tokens inside a character are not sent"),
        (honest, [20, 7], r"it stopped \(eos\) without a stop token"),
    ],
)
async def test_a_broken_answer_is_an_error_of_its_turn(
    lie: Lie, script: list[int], message: str, server: FakeLlamaServer, bench: Bench
) -> None:
    server.lie, server.script = lie, script
    with pytest.raises(EngineFailed, match=message):
        await bench.run(bench.request(stop_ids=[5]))
    server.lie, server.script = honest, ()
    assert len(await bench.ids(bench.request())) == 24


async def test_an_error_in_the_stream_is_that_of_the_server(
    server: FakeLlamaServer, bench: Bench
) -> None:
    """A full cache, which all slots share, ends each turn; they can go on elsewhere."""
    full = {"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server"}}
    server.lie = lambda events: [full] if events[0]["tokens"] != [0] else events
    with pytest.raises(EngineDied, match="Context size has been exceeded"):
        await bench.run(bench.request())
    assert bench.engine.healthy()
