"""Serializes the responses that continue a conversation, across all frontends.

The record of a conversation names the turn that runs and its process. A turn begins by writing its name, which the
store does only if no other one is there, and its last write adds the items and removes the name. A client may be faster
than that last write, so a second turn waits a moment before it is refused. The name of a process that is gone does not
count.
"""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import chain, repeat

from msgspec import Raw
from msgspec.structs import replace

from schemas.errors import Invalid, NotFound, TooLarge, TurnwireError
from services.frontend.apis.responses.errors import not_found
from services.frontend.apis.responses.store.memory import Change, MemoryStore
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


class ConversationTurn(AbstractContextManager["ConversationTurn"]):
    """A turn that runs in a conversation, or in none. As a context manager it ends with the block at the latest."""

    def __init__(self, items: list[Raw] | None, end: Callable[[StoredResponse | None], object]) -> None:
        """`end`: called once, with the response if it has to be added."""
        self.items = items
        """Those before the turn; None where there is no conversation."""
        self._end = end
        self._ended = False

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self, made: StoredResponse | None = None) -> None:
        """Adds the input and the output of a response to the conversation, and lets others continue it. Idempotent."""
        if not self._ended:
            self._ended = True
            self._end(made if made is not None and made.status in _KEPT else None)


class ConversationTurns:
    """The conversations, and the turns that this process runs in them.

    Every method raises NotFound where there is no such conversation, and TurnwireError where the store does not answer.
    """

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
        """A conversation, to be shown."""
        for pause in (*WAITS_S[:SHOWN_WAITS], None):
            found = await self._store.get(id, tenant) if id.startswith(CONVERSATION_PREFIX) else None
            if found is None:
                break
            if pause is None or not self._in_use(found):
                return found
            await asyncio.sleep(pause)
        raise not_found("Conversation", id, "conversation")

    async def begin(self, id: str | None, tenant: str | None, items: list[Raw]) -> ConversationTurn:
        """Begins a turn with this input, which the caller ends; one without a conversation where `id` is None.

        Raises Locked where another turn runs, and Invalid where the conversation would become too large.
        """
        if id is None:
            return ConversationTurn(None, lambda _: None)
        name = secrets.token_hex(8)

        def begun(record: StoredResponse) -> StoredResponse:
            check_size([*record.input, *items])
            return replace(record, owner=self._owner, turn=name)

        def end(made: StoredResponse | None) -> None:
            task = asyncio.create_task(self._end(id, tenant, name, made), name=f"end a turn of {id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._running.add(name)
        try:
            record = await self._revise_unused(id, tenant, begun)
        except (Invalid, NotFound):
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

        return await self._revise_unused(id, tenant, changed)

    async def revise(self, id: str, tenant: str | None, change: Change) -> StoredResponse:
        """Replaces a conversation by what `change` makes of it, also while a turn runs."""
        found = await self._store.revise(id, tenant, change) if id.startswith(CONVERSATION_PREFIX) else None
        if found is None:
            raise not_found("Conversation", id, "conversation")
        return found

    async def settled(self, timeout_s: float | None = None) -> None:
        """Waits until every turn that has ended is written."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    async def close(self, patience_s: float) -> None:
        """Gives up writes that do not succeed in time."""
        await self.settled(patience_s)
        for task in self._tasks:
            task.cancel()

    def _in_use(self, record: StoredResponse, *, patient: bool = True) -> bool:
        """`patient`: take a process that is unknown here for alive, as one may be whose heartbeat has yet to come."""
        if record.owner == self._owner:
            return record.turn in self._running
        return bool(record.owner) and (patient or self._alive(record.owner))

    async def _revise_unused(self, id: str, tenant: str | None, change: Change) -> StoredResponse:
        """`revise` for a conversation that is not in use, or becomes so in time."""

        def checked(record: StoredResponse, *, patient: bool) -> StoredResponse:
            if self._in_use(record, patient=patient):
                raise Locked
            return change(record)

        for pause in WAITS_S:
            with suppress(Locked):
                return await self.revise(id, tenant, partial(checked, patient=True))
            await asyncio.sleep(pause)
        return await self.revise(id, tenant, partial(checked, patient=False))

    async def _end(self, id: str, tenant: str | None, name: str, made: StoredResponse | None) -> None:
        """The last write of a turn, tried until the store takes it: no other turn can begin before."""

        def ended(record: StoredResponse) -> StoredResponse:
            if (record.owner, record.turn) != (self._owner, name):
                raise _TurnGone
            freed = replace(record, owner="", turn="")
            if made is None:
                return freed
            items = [*record.input, *made.input, *made.output] if made.context is None else made.context
            return replace(freed, input=items)

        try:
            for pause in chain(RETRY_S, repeat(RETRY_S[-1])):
                try:
                    with suppress(_TurnGone):
                        await self._store.revise(id, tenant, ended)
                    return
                except TooLarge:
                    self._log.warning("responses.conversation_not_extended", conversation=id, reason="too large")
                    made = None
                except TurnwireError as error:
                    self._log.warning("responses.conversation_not_written", conversation=id, reason=error.info.message)
                    await asyncio.sleep(pause)
        finally:
            self._running.discard(name)


class _TurnGone(Exception):
    """The record names another turn or none."""


def check_size(items: list[Raw]) -> None:
    """Raises Invalid where these are too many bytes for one conversation."""
    if json_size(*items) > MAX_BYTES:
        raise Invalid(
            f"A conversation may have {MAX_BYTES} bytes of items; begin another one.",
            param="conversation",
            code="conversation_too_large",
        )
