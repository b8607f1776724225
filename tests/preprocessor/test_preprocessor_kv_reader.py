"""The index of the workers' KV blocks over a real bus: updates, snapshots and losses."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from prometheus_client import generate_latest

from schemas import subjects
from schemas.control import KvUpdate, ModelCard
from schemas.token_ids import pack_ids
from services.preprocessor.routing.kv_index import KvIndex
from services.preprocessor.routing.kv_reader import KvEventReader
from services.runtime.nats.bus import Delivery
from services.tokenization.block_keys import block_keys, pack
from services.worker.kv import publisher as kv_publisher
from services.worker.kv.blocks import KvBlockIndex
from services.worker.kv.events import (
    BlocksOffloaded,
    BlocksRemoved,
    BlocksStored,
    GroupStored,
    KvEvent,
    LayerGroup,
    OffloadedRemoved,
)
from services.worker.kv.judge import MOST_WRONG
from services.worker.kv.prompt_blocks import PromptBlocks
from services.worker.kv.publisher import KvPublisher
from tests.kit.processes import MakeProcess, Reported
from tests.kit.waiting import eventually

SIZE = 4
PROMPT = list(range(40))
PROMPT_BLOCKS: list[tuple[int | str, list[int]]] = [
    (number, PROMPT[number * SIZE :][:SIZE]) for number in range(10)
]


def keys(tokens: list[int]) -> list[int]:
    return list(block_keys(pack_ids(tokens), SIZE))


def taken(publisher: KvPublisher, tokens: list[int], salt: str | None = None) -> PromptBlocks:
    """Starts a turn with this prompt."""
    blocks = publisher.look_up(pack_ids(tokens), salt)
    publisher.record_prompt(blocks)
    return blocks


class Pair:
    """A worker that publishes and a preprocessor that subscribes."""

    def __init__(self, make_process: MakeProcess, model: str) -> None:
        self.make = make_process
        self.model = model
        self.blocks = KvBlockIndex(SIZE, 64 * SIZE)
        self.index = KvIndex()

    async def worker(
        self, name: str = "w1", events: AsyncGenerator[KvEvent, None] | None = None
    ) -> KvPublisher:
        self.process = await self.make("worker", f"{self.model}-{name}")
        self.process.serve(Reported(ModelCard(self.model, block_tokens=SIZE)))

        def describe_again() -> None:
            self.process.serve(Reported(ModelCard(self.model)))

        publisher = KvPublisher(
            self.process, self.model, self.blocks, events, on_change=describe_again
        )
        await publisher.start()
        await self.process.bus.flush()  # subscribed before anyone answers
        self.process.heartbeats.send()
        return publisher

    async def preprocessor(self) -> None:
        self.listener = await self.make("preprocessor", f"{self.model}-p")
        self.feed = KvEventReader(self.listener, self.model, self.index)
        await self.feed.start()
        await self.listener.bus.flush()

    def held(self, tokens: list[int]) -> int:
        return self.index.overlaps(keys(tokens)).get(self.process.id, 0)


@pytest.fixture
def pair(make_process: MakeProcess, request: pytest.FixtureRequest) -> Pair:
    return Pair(make_process, request.node.name)


async def test_ended_turn_is_published_at_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another preprocessor may receive the session's next turn."""
    monkeypatch.setattr(kv_publisher, "PUBLISH_DELAY_S", 3600)
    await pair.preprocessor()
    publisher = await pair.worker()
    await eventually(lambda: pair.blocks.followed)
    prompt = taken(publisher, PROMPT[:10])
    publisher.record_turn(prompt, PROMPT[10:21])
    await eventually(lambda: pair.held(PROMPT) == 5)


async def test_salted_turn_is_found_only_with_its_salt(pair: Pair) -> None:
    await pair.preprocessor()
    publisher = await pair.worker()
    publisher.record_turn(taken(publisher, PROMPT, "s"), [1] * 9)
    await eventually(lambda: len(pair.index) == 12)
    assert pair.held(PROMPT) == 0
    salted = list(block_keys(pack_ids([*PROMPT, *[1] * 8]), SIZE, salt="s"))
    assert pair.index.overlaps(salted) == {pair.process.id: 12}


async def test_lost_update_is_replaced_by_a_snapshot(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.preprocessor()
    publisher = await pair.worker()
    await eventually(lambda: pair.listener.registry.get("worker", pair.process.id) is not None)
    taken(publisher, PROMPT[:8])
    await eventually(lambda: pair.held(PROMPT) == 2)
    lost: list[object] = []
    with monkeypatch.context() as bus:
        bus.setattr(pair.process, "publish", lambda subject, message: lost.append(message))
        taken(publisher, PROMPT)
        await eventually(lambda: bool(lost))
    taken(publisher, [9] * 4)
    await eventually(lambda: pair.held(PROMPT) == 10 and pair.held([9] * 4) == 1)


async def test_malformed_messages_are_ignored_and_a_leaving_worker_is_removed(pair: Pair) -> None:
    await pair.preprocessor()
    publisher = await pair.worker()
    await eventually(lambda: pair.listener.registry.get("worker", pair.process.id) is not None)
    bus = pair.process.bus
    subject = subjects.kv(pair.model, pair.process.id)
    for data in (b"", b'{"worker":1}', b'{"worker":"x","seq":1,"stored":"AAAA"}'):
        bus.publish(subject, data)
    pair.process.publish(subject, KvUpdate(pair.process.id, 2**62, stored=pack([1])))
    taken(publisher, PROMPT)
    await eventually(lambda: pair.held(PROMPT) == 10)
    pair.process.heartbeats.send(leaving=True)
    await eventually(lambda: len(pair.index) == 0)


async def test_nothing_is_published_before_a_request(pair: Pair) -> None:
    publisher = await pair.worker()
    heard: list[Delivery] = []
    other = await pair.make("preprocessor", f"{pair.model}-q")
    await other.subscribe(subjects.every_kv(pair.model), heard.append)
    await other.bus.flush()
    taken(publisher, PROMPT)
    await eventually(lambda: len(pair.blocks.keys()) == 10)
    await pair.preprocessor()
    pair.process.heartbeats.send()
    await eventually(lambda: pair.held(PROMPT) == 10)
    assert not heard


async def test_ends_reach_a_preprocessor_as_ends(pair: Pair) -> None:
    """By a snapshot and by updates; the prompt's other blocks promise nothing."""
    await pair.preprocessor()
    states = LayerGroup(1, SIZE, needed=1)

    async def events() -> AsyncGenerator[KvEvent, None]:
        yield GroupStored(states, [5])
        yield BlocksStored(None, PROMPT_BLOCKS)
        await eventually(lambda: pair.blocks.followed)
        yield GroupStored(states, [9])

    publisher = await pair.worker(events=events())
    await eventually(lambda: pair.held(PROMPT) == 10)
    assert not publisher.shares_any_beginning
    assert pair.held(PROMPT[:39]) == pair.held([*PROMPT[:24], *[99] * 9]) == 6
    assert pair.held(PROMPT[:20]) == 0


async def test_worker_with_wrong_predictions_makes_none(pair: Pair) -> None:
    await pair.preprocessor()

    async def events() -> AsyncGenerator[KvEvent, None]:
        yield BlocksStored(None, PROMPT_BLOCKS)
        await asyncio.Event().wait()

    publisher = await pair.worker(events=events())
    await eventually(lambda: pair.held(PROMPT) == 10)
    for _ in range(MOST_WRONG + 1):
        blocks = publisher.look_up(pack_ids(PROMPT), None)
        assert blocks.cached == 36
        publisher.record_found(blocks, 4)
    assert not publisher.predicts
    assert publisher.look_up(pack_ids(PROMPT), None).cached == 0
    await eventually(lambda: pair.held(PROMPT) == 0)
    pair.process.heartbeats.send()
    await eventually(
        lambda: not any(map(pair.feed.publishes_blocks, pair.listener.registry.living("worker")))
    )
    metrics = generate_latest(pair.process.metrics).decode()
    assert "turnwire_kv_prediction_off 1.0" in metrics


async def test_offloaded_blocks_reach_a_preprocessor(pair: Pair) -> None:
    """By a snapshot and by updates, also those that have left the cache."""
    await pair.preprocessor()
    go_on = asyncio.Event()

    async def events() -> AsyncGenerator[KvEvent, None]:
        yield BlocksStored(None, PROMPT_BLOCKS)
        yield BlocksOffloaded([3, 4, "of another group"])
        yield BlocksRemoved([9, 8, 7, 6, 5, 4, 3])
        await go_on.wait()
        yield BlocksOffloaded([5, 9])  # copied before they left the cache
        yield OffloadedRemoved([4])
        yield BlocksStored(2, PROMPT_BLOCKS[3:5])  # loaded

    def loadable() -> int:
        overlaps = pair.index.overlaps(keys(PROMPT))
        return pair.index.loadable(keys(PROMPT), overlaps).get(pair.process.id, 0)

    await pair.worker(events=events())
    await eventually(lambda: (pair.held(PROMPT), loadable()) == (3, 2))
    go_on.set()
    await eventually(lambda: (pair.held(PROMPT), loadable()) == (5, 1))
    pair.process.heartbeats.send(leaving=True)
    await eventually(lambda: not pair.index.has_offloaded)
