"""Publishes which KV blocks this worker holds, and answers requests for all of them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple

import msgspec
from prometheus_client import Gauge
from typing_extensions import override

from schemas import subjects
from schemas.token_ids import pack_ids
from services.runtime.nats.bus import Delivery
from services.runtime.nats.requests import after_sending
from services.runtime.process import Process
from services.tokenization.block_keys import TOKEN_ID_BYTES, KeyMemo, PromptKeys
from services.worker.engine import Engine, EngineInfo
from services.worker.kv.blocks import KvBlockIndex
from services.worker.kv.cached_blocks import extend_keys
from services.worker.kv.events import KvEvent
from services.worker.kv.judge import Prediction, PredictionJudge
from services.worker.kv.prompt_blocks import (
    NO_BLOCKS,
    AssumedBlocks,
    PromptBlocks,
    ReportedBlocks,
)
from services.worker.kv.updates import KvUpdates

SNAPSHOT_SHARE = 0.5
"""Share of the largest message of the bus that a snapshot may take; the oldest keys beyond it are
left out."""
PUBLISH_DELAY_S = 0.02
"""Delay of an open turn's changes: preprocessors need them for the session's next turn only."""


class _Chain(NamedTuple):
    """The blocks of an ended turn."""

    keys: Sequence[int]
    """The keys of its prompt."""
    tail: bytes
    """The ids after them, with the output (`pack_ids`)."""
    salt: str | None


class Kv:
    """What a worker records of its engine's KV cache. This one records nothing, because prompts
    share no blocks; a `KvPublisher` does."""

    predicts = True
    """Whether the worker reports what its cache holds; once False, for good."""

    @property
    def shares_any_beginning(self) -> bool:
        """Whether prompts share whatever blocks they begin with, as far as is known; else only up
        to some ends."""
        return True

    async def start(self) -> None:
        """Subscribes to requests for snapshots, and starts to read events."""

    def look_up(self, prompt: bytes, salt: str | None) -> PromptBlocks:
        """Returns the blocks of a prompt (`pack_ids`), and how much of it the cache holds by the
        index. The last token is always computed."""
        return NO_BLOCKS

    def record_found(self, blocks: PromptBlocks, cached: int) -> None:
        """Compares a prediction with what the engine found, in tokens. Called at the turn's end,
        when the events before its first step have arrived."""

    def record_prompt(self, blocks: PromptBlocks) -> None:
        """Notes that a prompt with these blocks has been computed."""

    def record_turn(self, blocks: PromptBlocks, output: Sequence[int]) -> None:
        """Notes that a turn has ended: the cache also has its output, except the last token, which
        was not computed."""


NO_KV: Final = Kv()


class KvPublisher(Kv):
    """Publishes one worker's changes: those within `PUBLISH_DELAY_S` together, and at once after
    the end of a turn, because its client may then send the next request.

    Until the first request for a snapshot no preprocessor follows this worker, and nothing is
    published. The index has a prompt as soon as its first token is sent. The blocks of an ended
    turn follow `PUBLISH_DELAY_S` later, one chain per tick, so that no token waits for them.
    """

    def __init__(
        self,
        process: Process,
        model: str,
        index: KvBlockIndex,
        events: AsyncIterator[KvEvent] | None = None,
        *,
        on_change: Callable[[], None],
    ) -> None:
        """`events`: the engine's KV events; None: the index assumes what the cache does;
        `on_change`: called when `predicts` has changed."""
        self._process = process
        self._model = model
        self._index = index
        self._events = events
        self._on_change = on_change
        index.followed = False
        self._ended: deque[_Chain] = deque()
        """The blocks of ended turns that are not in the index yet."""
        self._updates = KvUpdates(process.id, index)
        self._due = False
        self._memo = KeyMemo(index.block_tokens)
        self._judge = PredictionJudge(index.block_tokens)
        self._is_off = Gauge(
            "turnwire_kv_prediction_off",
            "1: the worker does not predict what the engine finds in its KV cache.",
            registry=process.metrics,
        )
        self._loop = asyncio.get_running_loop()

    @override
    async def start(self) -> None:
        await self._process.subscribe(
            subjects.kv_snapshot(self._model, self._process.id), self._snapshot
        )
        if self._events is not None:
            self._process.spawn(self._read(self._events), "kv events")

    async def _read(self, events: AsyncIterator[KvEvent]) -> None:
        async for event in events:
            self._index.apply(event)
            self._publish_soon()
            if self._index.unpredictable and self.predicts:
                self._stop_predicting()

    def _stop_predicting(self) -> None:
        """Reports, once, that the index has nothing from now on."""
        self.predicts = False
        self._is_off.set(1)
        self._process.log.warning("worker.kv_prediction_off", reason=self._index.unpredictable)
        self._on_change()
        self._process.heartbeats.send_soon()
        self._publish_soon()

    # -- prompts and turns

    @override
    def look_up(self, prompt: bytes, salt: str | None) -> PromptBlocks:
        keys = PromptKeys(self._memo, prompt, salt)
        size = self._index.block_tokens
        before_last = (len(prompt) // TOKEN_ID_BYTES - 1) // size
        blocks = self._index.count_cached(keys, max(before_last, 0))
        cached = blocks * size
        if self._events is None:
            tail = prompt[len(keys) * size * TOKEN_ID_BYTES :]
            return AssumedBlocks(cached, keys, tail, salt)
        prediction = None
        if blocks:
            prediction = Prediction(cached, keys[blocks - 1], self._index.removals)
        return ReportedBlocks(cached, prediction)

    @property
    @override
    def shares_any_beginning(self) -> bool:
        return self.predicts and not self._index.has_ends

    @override
    def record_found(self, blocks: PromptBlocks, cached: int) -> None:
        if not isinstance(blocks, ReportedBlocks) or not self.predicts:
            return
        prediction = blocks.prediction
        if prediction is None:
            return
        removed = self._index.was_removed(prediction.last_key, prediction.removals)
        self._judge.record(prediction.tokens, cached, removed=removed)
        if self._judge.objection:
            self._index.give_up(self._judge.objection)
            self._stop_predicting()

    @override
    def record_prompt(self, blocks: PromptBlocks) -> None:
        if isinstance(blocks, AssumedBlocks):
            after_sending(self._use, blocks.keys)

    @override
    def record_turn(self, blocks: PromptBlocks, output: Sequence[int]) -> None:
        if not isinstance(blocks, AssumedBlocks):
            return
        tail = blocks.tail + pack_ids(output[:-1])
        self._ended.append(_Chain(blocks.keys, tail, blocks.salt))
        if self._index.followed:
            after_sending(self._enter)  # the end itself is sent first
        else:
            self._publish_soon()

    # -- the index

    def _use(self, keys: Sequence[int]) -> None:
        self._index.record_use(keys)
        self._publish_soon()

    def _use_ended(self) -> None:
        """Enters the blocks of the turn that ended first."""
        chain = self._ended.popleft()
        keys = extend_keys(chain.keys, chain.tail, self._index.block_tokens, chain.salt)
        self._index.record_use(keys)

    def _publish_soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_later(PUBLISH_DELAY_S, self._enter)

    def _enter(self) -> None:
        """Enters the blocks of one ended turn. After the last one, publishes the changes."""
        self._due = False
        if self._ended:
            self._use_ended()
        if self._ended:
            self._due = True
            self._loop.call_soon(self._enter)
        else:
            self._publish()

    # -- messages

    def _publish(self) -> None:
        """Publishes the changes of the index."""
        subject = subjects.kv(self._model, self._process.id)
        for update in self._updates.take():
            self._process.publish(subject, update)

    def _snapshot(self, delivery: Delivery) -> None:
        while self._ended:
            self._use_ended()
        self._publish()  # `seq` must cover everything in the answer
        self._index.followed = True
        snapshot = self._updates.snapshot(int(self._process.bus.max_payload * SNAPSHOT_SHARE))
        delivery.reply(msgspec.json.encode(snapshot))


def open_publisher(
    process: Process, engine: Engine, info: EngineInfo, model: str, on_change: Callable[[], None]
) -> Kv:
    """Returns the publisher of an engine; `NO_KV` if its prompts share no blocks."""
    if info.block_tokens is None or "prefix_cache" not in info.features:
        return NO_KV
    events = None
    if "kv_events" in info.features:
        events = engine.kv_events()
    index = KvBlockIndex(info.block_tokens, info.kv_tokens, info.recomputed_blocks)
    return KvPublisher(process, model, index, events, on_change=on_change)
