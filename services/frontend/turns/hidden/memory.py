"""Remembers the hidden parts of answers, and puts them back into their clients' next requests.

They are in the store of responses. A turn with a hidden part that is forgotten is rendered as the
client sent it: the prompt then begins with fewer tokens of the last one.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec
from cachetools import LRUCache
from msgspec import Raw
from msgspec.structs import replace

from schemas.conversation import Call, Conversation, Message
from schemas.errors import TurnwireError
from services.frontend.stored.memory import Clock, MemoryStore
from services.frontend.stored.record import StoredHidden
from services.frontend.turns.hidden.deferred_tools import defer_tools
from services.frontend.turns.hidden.history import HiddenTurns, put_back, turn_keys

WRITE_S: Final = 0.5
"""The longest time that the end of an answer waits until other frontends can read what it hid."""
READ_S: Final = 0.5
"""The longest time for all look-ups of a request."""
_READS_AT_ONCE: Final = 16
"""Look-ups of a request that are in flight at the same time."""
_KNOWN_TURNS: Final = 1 << 16
"""Turns without hidden parts that this process remembers, so that it does not look for them in
the bucket again."""
_NOTHING: Final = HiddenTurns()
_hidden = msgspec.json.Decoder(HiddenTurns)


class HiddenMemory:
    """The hidden parts of the answers of a frontend."""

    def __init__(self, store: MemoryStore, clock: Clock, listed_tools: int | None = None) -> None:
        """`clock` returns Unix time. `listed_tools`: the tools at the start of a prompt, as in
        `defer_tools`; None: all."""
        self._store = store
        self._clock = clock
        self._listed_tools = listed_tools
        self._plain: LRUCache[tuple[str | None, str], bool] = LRUCache(_KNOWN_TURNS)
        """Turns without hidden parts, by owner and key."""

    async def add(self, conversation: Conversation, owner: str | None) -> Conversation:
        """Returns the conversation with its tools deferred if they are many, and with what is
        hidden of its earlier answers."""
        if self._listed_tools is not None:
            conversation = defer_tools(conversation, self._listed_tools)
        if any(tool.hosted is not None and tool.hosted.hidden for tool in conversation.tools):
            return await self._restore(conversation, owner)
        return conversation

    async def _restore(self, conversation: Conversation, owner: str | None) -> Conversation:
        keys = turn_keys(conversation)
        sought = {index: key for index, key in keys.items() if not self._plain.get((owner, key))}
        if not sought:
            return conversation
        found = await self._find(sought.values(), owner)
        newest = max(keys)  # its record may be on its way from another frontend
        hidden: dict[int, HiddenTurns] = {}
        for index, key in sought.items():
            before = found.get(key)
            if before is not None:
                hidden[index] = before
            elif key in found and index != newest:
                self._plain[owner, key] = True
        if not hidden:
            return conversation
        return replace(conversation, messages=put_back(conversation.messages, hidden))

    async def keep(
        self, before: Conversation, shown: Message, hidden: HiddenTurns, owner: str | None
    ) -> None:
        """Remembers what is hidden of an answer, or that nothing is. Returns when other frontends
        can read it.

        Answers without a call and with the same history cannot be distinguished when they come
        back: of them, nothing is remembered.

        Args:
            before: the conversation before the answer.
            shown: what the client gets, as one message.
        """
        messages = [*before.messages, shown]
        key = turn_keys(replace(before, messages=messages)).get(len(before.messages))
        if key is None:  # the client gets nothing that comes back
            return
        id = _id(key, owner)
        deadline = asyncio.get_running_loop().time() + WRITE_S
        has_calls = any(isinstance(part, Call) for part in shown.parts)
        if not has_calls and await self._is_ambiguous(id, hidden, owner, deadline):
            hidden = _NOTHING
        self._plain.pop((owner, key), None)
        record = StoredHidden(
            id=id,
            created=self._clock(),
            tenant=owner,
            turns=Raw(msgspec.json.encode(hidden)),
        )
        self._store.put(record)
        try:
            async with asyncio.timeout_at(deadline):
                await self._store.wait_for_write(id)
        except TimeoutError:
            pass  # it is in this process; another frontend may miss it

    async def _is_ambiguous(
        self, id: str, hidden: HiddenTurns, owner: str | None, deadline: float
    ) -> bool:
        """Returns whether another answer has this id, or may have it. `deadline`: the loop's
        time."""
        try:
            async with asyncio.timeout_at(deadline):
                stored = await self._store.get(StoredHidden, id, owner, wait=False)
        except (TurnwireError, TimeoutError):
            return True
        # another answer may have been kept here while the bucket was read
        earlier = self._store.find(StoredHidden, id, owner) or stored
        return earlier is not None and _decode(earlier) != hidden

    async def _find(self, keys: Iterable[str], owner: str | None) -> dict[str, HiddenTurns | None]:
        """Returns what was hidden of the turn of each key: None if nothing. A key is left out if
        the shared store does not answer."""
        found: dict[str, HiddenTurns | None] = {}
        elsewhere: list[str] = []
        for key in keys:
            record = self._store.find(StoredHidden, _id(key, owner), owner)
            if record is None:
                elsewhere.append(key)
            else:
                found[key] = _decode(record)
        places = asyncio.Semaphore(_READS_AT_ONCE)

        async def read(key: str) -> None:
            async with places:
                record = await self._store.get(StoredHidden, _id(key, owner), owner, wait=False)
            found[key] = _decode(record)

        try:
            async with asyncio.timeout(READ_S), asyncio.TaskGroup() as reads:
                for key in elsewhere:
                    reads.create_task(read(key))
        except* (TurnwireError, TimeoutError):
            pass  # the prompt is longer, and the next request looks again
        return found


def _decode(record: StoredHidden | None) -> HiddenTurns | None:
    """Returns what a record has; None for nothing, and for one of another release."""
    if record is None:
        return None
    try:
        hidden = _hidden.decode(record.turns)
    except msgspec.DecodeError:
        return None
    return None if hidden == _NOTHING else hidden


def _id(key: str, owner: str | None) -> str:
    return f"hidden_{key}_{owner or ''}"
