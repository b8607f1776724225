"""Tells the preprocessors which KV blocks this worker holds, and answers who wants to know all of them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import islice

import msgspec

from schemas import subjects
from schemas.frames import pack_ids
from schemas.kv import KvSnapshot, KvUpdate
from services.runtime.block_keys import KeyMemo, PromptKeys, block_keys, pack
from services.runtime.bus import Message
from services.runtime.process import Process
from services.worker.engine import Engine, EngineInfo, TellsBlocks
from services.worker.kv_book import Changes, KvBook
from services.worker.kv_events import KvEvent

MAX_KEYS = 32768
"""In one update; what is more goes into the next."""
SNAPSHOT_SHARE = 0.5
"""Of the largest message that the bus takes; what a cache holds beyond that is left out, the oldest first."""
_KEY_CHARS = 11
"""Of a key in JSON: eight bytes in base64."""

TELL_DELAY_S = 0.02
"""So late may be what preprocessors know of a turn that goes on: they need it for the next one."""

_encode = msgspec.json.Encoder().encode


class KvPublisher:
    """One worker's word on its KV cache. What changes within `TELL_DELAY_S` goes out together, and at once behind the
    end of a turn: its client may ask again as soon as it has heard of that.

    Until somebody has asked for all that the cache holds, nobody follows it, and nothing is told. The book is kept
    `TELL_DELAY_S` behind the turns, one chain of blocks in a turn of the loop: no token waits for it.
    """

    def __init__(
        self, process: Process, model: str, book: KvBook, events: AsyncIterator[KvEvent] | None = None
    ) -> None:
        """`events`: the engine's; None where the book has to assume what the cache does."""
        self._process = process
        self._model = model
        self._book = book
        self._events = events
        book.followed = False
        self._chains: deque[Callable[[], Sequence[int]]] = deque()
        """What was used and is not in the book yet."""
        self._seq = 0
        self._due = False
        self._memo = KeyMemo(book.block_tokens)
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Subscribes; from now on questions are answered and events are read."""
        await self._process.subscribe(subjects.kv_snapshot(self._model, self._process.id), self._snapshot)
        if self._events is not None:
            self._process.spawn(self._read(self._events), "kv events")

    @property
    def block_tokens(self) -> int:
        """Tokens in a block."""
        return self._book.block_tokens

    def keys(self, prompt: bytes, salt: str | None) -> PromptKeys | None:
        """The keys of a prompt's whole blocks (`pack_ids`), for `used` and `ended`; None: the engine tells itself."""
        return PromptKeys(self._memo, prompt, salt) if self._events is None else None

    def used(self, keys: Sequence[int]) -> None:
        """A prompt with these blocks is being computed."""
        self._chains.append(lambda: keys)
        self._tell_soon()

    def ended(self, keys: Sequence[int], rest: bytes, output: Sequence[int], salt: str | None) -> None:
        """The turn has ended: its output is in the cache, too. The last token was never computed itself.

        `rest`: the prompt's ids behind the blocks with `keys` (`pack_ids`).
        """
        self._chains.append(partial(self._whole, keys, rest, output, salt))
        if self._book.followed:
            # A turn of the loop later: the end itself is written first.
            self._loop.call_soon(self._loop.call_soon, self._enter)
        else:
            self._tell_soon()

    def _whole(self, keys: Sequence[int], rest: bytes, output: Sequence[int], salt: str | None) -> Sequence[int]:
        tail = rest + pack_ids(output[:-1])
        more = list(block_keys(tail, self._book.block_tokens, salt=salt, parent=keys[-1] if keys else None))
        return [*keys, *more] if more else keys

    async def _read(self, events: AsyncIterator[KvEvent]) -> None:
        async for event in events:
            self._book.event(event)
            self._tell_soon()

    def _tell_soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_later(TELL_DELAY_S, self._enter)

    def _enter(self) -> None:
        self._due = False
        if self._chains:
            self._book.used(self._chains.popleft()())
        if self._chains:
            self._due = True
            self._loop.call_soon(self._enter)
        else:
            self._tell()

    def _tell(self) -> None:
        changes = self._book.take_changes()
        if not changes:
            return
        for update in self._updates(changes):
            self._process.publish(subjects.kv(self._model, self._process.id), update)

    def _updates(self, changes: Changes) -> list[KvUpdate]:
        updates: list[KvUpdate] = []
        removed, stored, cleared = iter(changes.removed), iter(changes.stored), changes.cleared
        while True:
            gone = pack(islice(removed, MAX_KEYS))
            new = b"" if gone else pack(islice(stored, MAX_KEYS))
            if not (gone or new or cleared):
                return updates
            self._seq += 1
            updates.append(KvUpdate(self._process.id, self._seq, stored=new, removed=gone, cleared=cleared))
            cleared = False

    def _snapshot(self, message: Message) -> None:
        while self._chains:
            self._book.used(self._chains.popleft()())
        self._tell()  # `seq` must stand for all that the answer says
        self._book.followed = True
        fit = int(self._process.bus.max_payload * SNAPSHOT_SHARE) // _KEY_CHARS
        message.reply(_encode(KvSnapshot(self._process.id, self._seq, pack(self._book.keys()[-fit:]))))


def open_publisher(process: Process, engine: Engine, info: EngineInfo, model: str) -> KvPublisher | None:
    """None where prompts share nothing."""
    if info.block_tokens is None or "prefix_cache" not in info.features:
        return None
    events = engine.kv_events() if isinstance(engine, TellsBlocks) and "kv_events" in info.features else None
    return KvPublisher(process, model, KvBook(info.block_tokens, info.kv_tokens), events)
