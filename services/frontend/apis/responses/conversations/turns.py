"""Lets one response at a time continue a conversation, of all that any frontend makes.

The record of a conversation names the turn that runs and its process. A turn begins by writing its name, which the
store does only if no other one is there, and its last write adds the items and removes the name. A client may be faster
than that last write, so a second turn waits a moment before it is refused. The name of a process that is gone does not
count.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from schemas.errors import Invalid, NotFound, TooLarge, TurnwireError
from services.frontend.apis.responses.store.memory import MemoryStore
from services.frontend.apis.responses.store.record import CONVERSATION_PREFIX, StoredResponse, json_size
from services.runtime.observability.telemetry import FilteringBoundLogger

MAX_BYTES = 5 * 1024 * 1024
"""Of the items of a conversation when a turn begins, its own input included. A record of the bus takes 7 MiB."""
WAITS_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.4, 0.4, 0.4)
"""Pauses before a conversation that is in use is read again; the first few for one that is only shown."""
SHOWN_WAITS = 4
RETRY_S = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Pauses before the last write of a turn is tried again; the last one is repeated."""
_KEPT = ("completed", "incomplete")


class Locked(Invalid):
    """Another response is being made for the conversation."""

    def __init__(self) -> None:
        super().__init__(
            "Another process is currently operating on this conversation. Please retry in a few seconds.",
            param="conversation",
            code="conversation_locked",
        )


class _Over(Exception):
    """The turn is not in the record any more."""


class ConversationTurn(AbstractContextManager["ConversationTurn"]):
    """A turn that runs in a conversation, or in none. As a context manager it ends with the block at the latest."""

    def __init__(self, items: list[Raw] | None, end: Callable[[StoredResponse | None], None]) -> None:
        """`end`: called once, with the response if it has to be added."""
        self.items = items
        """Those before the turn; None where there is no conversation."""
        self._end = end
        self._ended = False

    def __exit__(self, *_: object) -> None:
        self.end()

    def check(self, items: list[Raw]) -> None:
        """Raises Invalid where the conversation would become too large with this input."""
        if self.items is not None:
            check_size([*self.items, *items])

    def end(self, made: StoredResponse | None = None) -> None:
        """Adds the input and the output of a response to the conversation, and lets others continue it. Idempotent."""
        if not self._ended:
            self._ended = True
            self._end(made if made is not None and made.status in _KEPT else None)


class ConversationTurns:
    """The turns of this process in all conversations."""

    def __init__(
        self, store: MemoryStore, log: FilteringBoundLogger, *, owner: str, alive: Callable[[str], bool]
    ) -> None:
        """`owner`: this process; `alive`: whether another one with this id is."""
        self._store = store
        self._log = log
        self._owner = owner
        self._alive = alive
        self._running: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def record(self, id: str, tenant: str | None) -> StoredResponse:
        """A conversation, to be shown. Raises NotFound, and TurnwireError where the store does not answer."""
        pauses = iter(WAITS_S[:SHOWN_WAITS])
        while True:
            found = await self._store.latest(id, tenant) if id.startswith(CONVERSATION_PREFIX) else None
            if found is None:
                raise not_found(id)
            pause = next(pauses, None)
            if pause is None or not self._in_use(found):
                return found
            await asyncio.sleep(pause)

    async def begin(self, id: str | None, tenant: str | None) -> ConversationTurn:
        """Begins a turn, which the caller ends; one without a conversation where `id` is None.

        Raises Locked where another turn runs, otherwise as `record`.
        """
        if id is None:
            return ConversationTurn(None, lambda _: None)
        name = secrets.token_hex(8)

        def end(made: StoredResponse | None) -> None:
            self._spawn(self._end(id, tenant, name, made), f"end a turn of {id}")

        self._running.add(name)
        try:
            record = await self._retried(id, tenant, lambda r: replace(r, owner=self._owner, turn=name))
        except (Locked, NotFound):
            self._running.discard(name)
            raise
        except BaseException:
            end(None)  # the name may be written all the same
            raise
        return ConversationTurn(record.input, end)

    async def change(self, id: str, tenant: str | None, items: Callable[[list[Raw]], list[Raw]]) -> StoredResponse:
        """Changes the items of a conversation while no turn runs. Raises as `begin`, and what `items` raises."""

        def changed(record: StoredResponse) -> StoredResponse:
            made = items(record.input)
            check_size(made)
            return replace(record, input=made)

        return await self._retried(id, tenant, changed)

    async def settled(self) -> None:
        """Waits until every turn that has ended is written."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self, patience_s: float) -> None:
        """Gives up writes that do not succeed in time."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)
        for task in self._tasks:
            task.cancel()

    def _in_use(self, record: StoredResponse, *, patient: bool = True) -> bool:
        """`patient`: take a process that is unknown here for alive, as one may be whose heartbeat has yet to come."""
        if record.owner == self._owner:
            return record.turn in self._running
        return bool(record.owner) and (patient or self._alive(record.owner))

    async def _retried(
        self, id: str, tenant: str | None, change: Callable[[StoredResponse], StoredResponse]
    ) -> StoredResponse:
        """Changes a record that is not in use, or becomes so in time."""
        for pause in (*WAITS_S, None):

            def checked(record: StoredResponse, last: bool = pause is None) -> StoredResponse:
                if self._in_use(record, patient=not last):
                    raise Locked
                return change(record)

            try:
                found = await self._store.revise(id, tenant, checked) if id.startswith(CONVERSATION_PREFIX) else None
            except Locked:
                if pause is None:
                    raise
                await asyncio.sleep(pause)
                continue
            if found is None:
                raise not_found(id)
            return found
        raise Locked

    async def _end(self, id: str, tenant: str | None, name: str, made: StoredResponse | None) -> None:
        """The last write of a turn, tried until the store takes it: no other turn can begin before."""

        def ended(record: StoredResponse) -> StoredResponse:
            if (record.owner, record.turn) != (self._owner, name):
                raise _Over
            freed = replace(record, owner="", turn="")
            if made is None:
                return freed
            items = [*record.input, *made.input, *made.output] if made.context is None else made.context
            return replace(freed, input=items)

        attempt = 0
        try:
            while True:
                try:
                    await self._store.revise(id, tenant, ended)
                except _Over:
                    pass
                except TooLarge:
                    self._log.warning("responses.conversation_not_extended", conversation=id, reason="too large")
                    made = None
                    continue
                except TurnwireError as error:
                    self._log.warning("responses.conversation_not_written", conversation=id, reason=error.info.message)
                    await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
                    attempt += 1
                    continue
                return
        finally:
            self._running.discard(name)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def check_size(items: list[Raw]) -> None:
    """Raises Invalid where these are too many bytes for one conversation."""
    if json_size(*items) > MAX_BYTES:
        raise Invalid(
            f"A conversation may have {MAX_BYTES} bytes of items; begin another one.",
            param="conversation",
            code="conversation_too_large",
        )


def not_found(id: str) -> NotFound:
    """The error for a conversation that is not stored."""
    return NotFound(f"Conversation with id '{id}' not found.", param="conversation")
