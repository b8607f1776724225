"""The dialect of llama-server, over a fake server."""

import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from schemas.conversation import OutputFormat
from schemas.errors import EngineFailed, Invalid
from schemas.events import FinishReason
from services.runtime.config.stages import WorkerConfig
from services.tokenization.detokenizer import Vocabulary
from services.worker.engine import EngineDied
from services.worker.engines.registry import open_engine
from services.worker.engines.remote.event_reader import BadAnswer
from services.worker.engines.remote.llama.dialect import LACKING
from services.worker.engines.remote.llama.unsent_tokens import UnsentTokens
from tests.kit.engines import PROMPT
from tests.kit.engines import ids_of as output
from tests.kit.waiting import eventually
from tests.worker.conformance import Bench
from tests.worker.fake_llama_server import (
    CONTEXT,
    TEXT,
    FakeLlamaServer,
    byte_tokenizer,
    fake_llama_server,
    is_cut,
    write_model,
)
from tests.worker.fake_server import Event, FakeServer, Lie, honest, running

FACE, HAN = [499, 500, 501], [502, 503]
"""The tokens of two characters."""
WORDS = [20, 21, 22]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path)


@asynccontextmanager
async def open_bench(server: FakeServer, model: Path) -> AsyncIterator[Bench]:
    engine: Any = open_engine("llama-server", WorkerConfig(model=str(model), engine_url=server.url))
    try:
        yield Bench(engine, await engine.start(), PROMPT, server.kill, cache_unit=1)
    finally:
        await engine.stop(1.0)


@pytest.fixture
async def server(model: Path) -> AsyncIterator[FakeLlamaServer]:
    async with fake_llama_server(model) as server:
        yield server


@pytest.fixture
async def bench(server: FakeLlamaServer, model: Path) -> AsyncIterator[Bench]:
    async with open_bench(server, model) as bench:
        yield bench


async def test_properties_are_those_of_one_slot(bench: Bench) -> None:
    info = bench.info
    assert (info.version, info.slots, info.max_model_len) == ("b11434-515e85511", 4, CONTEXT - 3)
    assert (info.kv_tokens, info.block_tokens, info.shares_queued) == (CONTEXT, 32, False)
    assert set(info.lacking) == {
        *("kv_events", "retention", "priority", "salt", "min_tokens", "penalties"),
        *("grammar", "vision"),
    }
    assert info.lacking["salt"] == LACKING["salt"]


async def test_a_request_leaves_no_field_to_the_settings_of_the_server(
    server: FakeLlamaServer, bench: Bench
) -> None:
    form = OutputFormat("json_schema", {"type": "object"})
    sampling: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": -1,
        "min_p": 0.1,
        "seed": -1,
        "logit_bias": {9: -1.0},
    }
    await bench.run(bench.request(guided=form, logprobs=3, stop_ids=[5, 7], **sampling))
    guided = server.requests[-1]
    await bench.run(bench.request())
    free = server.requests[-1]
    assert guided["json_schema"] == {"type": "object"}
    assert free.keys() == guided.keys() - {"json_schema"}
    assert [guided[name] for name in ("top_k", "seed", "n_probs")] == [0, 2**32 - 2, 3]
    assert guided["logit_bias"] == [[9, -1.0]]
    assert [free[name] for name in ("temperature", "top_p", "min_p")] == [0.0, 1.0, 0.0]
    assert (free["seed"], free["logit_bias"], free["n_probs"]) == (-1, [], 0)
    assert (free["ignore_eos"], guided["ignore_eos"]) == (True, False)


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


@pytest.mark.parametrize("cuts", [0, 12, 40])
def test_random_cuts_are_found_again_or_are_an_error(cuts: int) -> None:
    """With `cuts` tokens beside single bytes, so that some texts have several readings."""
    rng = random.Random(cuts)
    outcomes = [0, 0]
    for _ in range(40):
        data = "".join(rng.choices(TEXT, k=30)).encode()
        starts = rng.choices(range(len(data)), k=cuts)
        some = {data[start : start + rng.randint(2, 4)] for start in starts}
        pieces = sorted({bytes([byte]) for byte in TEXT.encode()} | some)
        unsent = UnsentTokens(Vocabulary(byte_tokenizer(pieces)))
        for text, tokens in _stream(data, pieces, rng):
            *before, last = tokens
            try:
                assert unsent.find(text, last, len(before)) == before
                outcomes[0] += 1
            except BadAnswer:
                outcomes[1] += 1
    assert outcomes[0] > 500
    assert bool(outcomes[1]) == bool(cuts)


def test_text_with_countless_readings_is_an_error_at_once() -> None:
    """Single bytes and pairs: as many readings as there are ways to choose the pairs."""
    text = "🙂" * 128
    data = text.encode()
    pairs = {data[start : start + 2] for start in range(4)}
    pieces = sorted({bytes([byte]) for byte in data} | pairs)
    unsent = UnsentTokens(Vocabulary(byte_tokenizer(pieces)))
    last = pieces.index(data[-1:])
    before = time.process_time()
    for count, how in ((300, "several readings"), (10, "no reading"), (1 << 60, "no reading")):
        with pytest.raises(BadAnswer, match=how):
            unsent.find(text, last, count)
    with pytest.raises(BadAnswer, match="no reading"):
        unsent.find(text * 1000, last, 400)
    assert time.process_time() - before < 10


def _stream(
    data: bytes, pieces: list[bytes], rng: random.Random
) -> Iterator[tuple[str, list[int]]]:
    """What is sent of `data`, cut into random tokens: texts, and the tokens of each."""
    text, tokens = b"", []
    while data:
        token = rng.choice([n for n, piece in enumerate(pieces) if data.startswith(piece)])
        data = data.removeprefix(pieces[token])
        text += pieces[token]
        tokens.append(token)
        if not is_cut(text):
            yield text.decode(), tokens
            text, tokens = b"", []


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


async def test_a_stop_id_frees_the_slot(server: FakeLlamaServer, bench: Bench) -> None:
    server.script = WORDS
    deltas = await bench.run(bench.request(max_tokens=2000, stop_ids=[WORDS[2]]))
    assert (output(deltas), deltas[-1].stop_id) == (WORDS[:2], WORDS[2])
    await eventually(lambda: not any(slot.is_busy for slot in server.slots))
    assert max(slot.decoded for slot in server.slots) < 2000


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


async def test_a_server_that_was_started_again_ends_the_engine(
    server: FakeLlamaServer, bench: Bench
) -> None:
    await bench.run(bench.request())
    before = server.pulses
    await eventually(lambda: server.pulses >= before + 2)
    assert bench.engine.healthy()
    server.restart()
    await eventually(lambda: not bench.engine.healthy())


async def test_a_server_without_the_interface_is_refused_with_what_to_do(model: Path) -> None:
    class Other(FakeServer):
        def routes(self) -> list[web.RouteDef]:
            return []

    async with running(Other()) as other:
        with pytest.raises(Invalid, match=r"is not a llama-server .* `llama-server -m FILE\.gguf`"):
            async with open_bench(other, model):
                pass
    async with fake_llama_server(model) as server:
        server.decodes = False
        with pytest.raises(Invalid, match="does not decode"):
            async with open_bench(server, model):
                pass
        server.settings = {}
        with pytest.raises(Invalid, match=r"is not a llama-server with a model .*n_ctx"):
            async with open_bench(server, model):
                pass
