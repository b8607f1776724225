"""Publishes which KV blocks this worker holds, and answers requests for all of them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import islice

import msgspec

from schemas import subjects
from schemas.control import KvSnapshot, KvUpdate
from schemas.frames import pack_ids
from services.runtime.bus import Delivery
from services.runtime.process import Process
from services.runtime.requests import after_sending
from services.tokenization.block_keys import TOKEN_ID_BYTES, KeyMemo, PromptKeys, pack
from services.worker.engine import Engine, EngineInfo, KvEvent, KvEventSource
from services.worker.kv.blocks import KvBlockIndex
from services.worker.kv.held_blocks import extended

MAX_KEYS = 32768
"""Keys in one update; the others are sent in further ones."""
SNAPSHOT_SHARE = 0.5
"""Share of the largest message of the bus that a snapshot may take; the oldest keys beyond it are
left out."""
_KEY_CHARS = 11
"""Characters of a key in JSON: eight bytes in base64."""
PUBLISH_DELAY_S = 0.02
"""Delay of an open turn's changes: preprocessors need them for the session's next turn only."""


class PromptBlocks(msgspec.Struct, frozen=True):
    """The blocks of a prompt."""

    keys: PromptKeys
    """The keys of its whole blocks."""
    tail: bytes
    """The ids after the whole blocks (`pack_ids`)."""
    salt: str | None


class KvPublisher:
    """Publishes one worker's changes: those within `PUBLISH_DELAY_S` together, and at once after
    the end of a turn, because its client may then send the next request.

    Until the first request for a snapshot no preprocessor follows this worker, and nothing is
    published. The index has a prompt as soon as its first token is sent, and is updated
    `PUBLISH_DELAY_S` after the end of a turn, one chain of blocks per tick, so that no token waits
    for it.
    """

    def __init__(
        self,
        process: Process,
        model: str,
        index: KvBlockIndex,
        events: AsyncIterator[KvEvent] | None = None,
    ) -> None:
        """`events`: the engine's KV events; None: the index assumes what the cache does."""
        self._process = process
        self._model = model
        self._index = index
        self._events = events
        index.followed = False
        self._chains: deque[Callable[[], Sequence[int]]] = deque()
        """Blocks of ended turns that are not in the index yet."""
        self._seq = 0
        self._due = False
        self._memo = KeyMemo(index.block_tokens)
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Subscribes to requests for snapshots, and starts to read events."""
        await self._process.subscribe(
            subjects.kv_snapshot(self._model, self._process.id), self._snapshot
        )
        if self._events is not None:
            self._process.spawn(self._read(self._events), "kv events")

    def blocks(self, prompt: bytes, salt: str | None) -> PromptBlocks | None:
        """Returns the blocks of a prompt (`pack_ids`) for `used` and `ended`; None if the engine
        reports its blocks."""
        if self._events is not None:
            return None
        keys = PromptKeys(self._memo, prompt, salt)
        return PromptBlocks(
            keys, prompt[len(keys) * self._index.block_tokens * TOKEN_ID_BYTES :], salt
        )

    def held(self, prompt: bytes, salt: str | None, blocks: PromptBlocks | None) -> int:
        """Returns how many tokens of a prompt the cache holds by the index. The last token is
        always computed.

        `blocks`: the result of `blocks` for the prompt.
        """
        keys = PromptKeys(self._memo, prompt, salt) if blocks is None else blocks.keys
        size, tokens = self._index.block_tokens, len(prompt) // TOKEN_ID_BYTES
        return max(min(self._index.held(keys), (tokens - 1) // size), 0) * size

    def used(self, blocks: PromptBlocks) -> None:
        """Notes that a prompt with these blocks has been computed."""
        after_sending(self._use, blocks)

    def ended(self, blocks: PromptBlocks, output: Sequence[int]) -> None:
        """Notes that a turn has ended: the cache also has its output, except the last token, which
        was not computed."""
        tail = blocks.tail + pack_ids(output[:-1])
        self._chains.append(
            partial(extended, blocks.keys, tail, self._index.block_tokens, blocks.salt)
        )
        if self._index.followed:
            after_sending(self._enter)  # the end itself is sent first
        else:
            self._publish_soon()

    def _use(self, blocks: PromptBlocks) -> None:
        self._index.used(blocks.keys)
        self._publish_soon()

    async def _read(self, events: AsyncIterator[KvEvent]) -> None:
        async for event in events:
            self._index.event(event)
            self._publish_soon()

    def _publish_soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_later(PUBLISH_DELAY_S, self._enter)

    def _enter(self) -> None:
        self._due = False
        if self._chains:
            self._index.used(self._chains.popleft()())
        if self._chains:
            self._due = True
            self._loop.call_soon(self._enter)
        else:
            self._publish()

    def _publish(self) -> None:
        cleared, held = self._index.take_changes()
        removed, stored = (
            iter([key for key in held if held[key] is there]) for there in (False, True)
        )
        while True:
            gone = pack(islice(removed, MAX_KEYS))
            new = b"" if gone else pack(islice(stored, MAX_KEYS))
            if not (gone or new or cleared):
                return
            self._seq += 1
            update = KvUpdate(
                self._process.id, self._seq, stored=new, removed=gone, cleared=cleared
            )
            self._process.publish(subjects.kv(self._model, self._process.id), update)
            cleared = False

    def _snapshot(self, delivery: Delivery) -> None:
        while self._chains:
            self._index.used(self._chains.popleft()())
        self._publish()  # `seq` must cover everything in the answer
        self._index.followed = True
        fit = int(self._process.bus.max_payload * SNAPSHOT_SHARE) // _KEY_CHARS
        delivery.reply(
            msgspec.json.encode(
                KvSnapshot(self._process.id, self._seq, pack(self._index.keys()[-fit:]))
            )
        )


def open_publisher(
    process: Process, engine: Engine, info: EngineInfo, model: str
) -> KvPublisher | None:
    """Returns the publisher of an engine; None if its prompts share no blocks."""
    if info.block_tokens is None or "prefix_cache" not in info.features:
        return None
    events = (
        engine.kv_events()
        if isinstance(engine, KvEventSource) and "kv_events" in info.features
        else None
    )
    return KvPublisher(process, model, KvBlockIndex(info.block_tokens, info.kv_tokens), events)
