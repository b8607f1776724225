"""`conversation` objects: named lists of items that responses continue and add to, in the store of responses.

A conversation is one record that every turn replaces. Two frontends could not agree on it without a lock on the bus, so
these objects exist only where each frontend has a store of its own.
"""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec
from aiohttp import web
from msgspec import Raw, Struct
from msgspec.structs import replace

from schemas.errors import Invalid, NotFound
from services.frontend.apis.common.bounds import Metadata
from services.frontend.apis.common.decode import decode_body
from services.frontend.apis.common.openai_wording import out_of_length, unsupported
from services.frontend.apis.responses.dialect import Responses
from services.frontend.apis.responses.errors import explain
from services.frontend.apis.responses.intake import AcceptedRequest
from services.frontend.apis.responses.store.input_items import listed, page_of, stored_items
from services.frontend.apis.responses.store.memory import MemoryStore
from services.frontend.apis.responses.store.record import CONVERSATION_PREFIX, StoredResponse, item_id
from services.frontend.http.bodies import read_body
from services.frontend.http.middleware import REQUEST_CONTEXT

PATH = "/v1/conversations"
MAX_ITEMS = 20
"""Items that one request may add."""
_KEPT = ("completed", "incomplete")
B = TypeVar("B", bound=Struct)


class ConversationBody(Struct):
    """A new conversation."""

    items: list[Raw] | None = None
    metadata: Metadata | None = None


class ConversationChange(Struct):
    """What can be changed of a conversation."""

    metadata: Metadata


class NewItems(Struct):
    """Items to add."""

    items: list[Raw]


class Conversations:
    """The conversations of one frontend."""

    def __init__(self, store: MemoryStore, dialect: Responses, *, available: bool, max_body_bytes: int) -> None:
        self._store = store
        self._dialect = dialect
        self._available = available
        self._max_body_bytes = max_body_bytes
        self._busy: set[str] = set()

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Registers every path."""
        router.add_post(PATH, self.create)
        router.add_get(f"{PATH}/{{id}}", self.retrieve, allow_head=False)
        router.add_post(f"{PATH}/{{id}}", self.update)
        router.add_delete(f"{PATH}/{{id}}", self.delete)
        router.add_get(f"{PATH}/{{id}}/items", self.list_items, allow_head=False)
        router.add_post(f"{PATH}/{{id}}/items", self.add_items)
        router.add_get(f"{PATH}/{{id}}/items/{{item}}", self.item, allow_head=False)
        router.add_delete(f"{PATH}/{{id}}/items/{{item}}", self.delete_item)

    def items(self, id: str, tenant: str | None) -> list[Raw]:
        """The items of a conversation. Raises NotFound, and Invalid where there are no conversations."""
        return self._record(id, tenant).input

    @contextmanager
    def turn(self, id: str | None) -> Iterator[None]:
        """While a response is made for a conversation. Raises Invalid where another one is."""
        if id is None:
            yield
            return
        if id in self._busy:
            raise Invalid(
                "Another process is currently operating on this conversation. Please retry in a few seconds.",
                code="conversation_locked",
            )
        self._busy.add(id)
        try:
            yield
        finally:
            self._busy.discard(id)

    def extend(self, accepted: AcceptedRequest, made: StoredResponse) -> None:
        """Adds the input and the output of a response that has ended to its conversation, if that is still there."""
        id = accepted.ask.request.conversation
        record = None if id is None else self._store.find(id, made.tenant)
        if record is not None and made.status in _KEPT:
            items = [*record.input, *made.input, *made.output] if made.context is None else made.context
            self._put(record, items)

    async def create(self, request: web.Request) -> web.Response:
        """Creates a conversation."""
        self._check()
        body = await self._read(request, ConversationBody)
        now = time.time()
        id = f"{CONVERSATION_PREFIX}{secrets.token_hex(24)}"
        document = {"id": id, "object": "conversation", "created_at": int(now), "metadata": body.metadata or {}}
        record = StoredResponse(
            id=id,
            created=now,
            response=Raw(msgspec.json.encode(document)),
            status="completed",
            tenant=request[REQUEST_CONTEXT].tenant,
            input=self._new_items(body.items or []),
        )
        self._store.put(record)
        return _json(record.response)

    async def retrieve(self, request: web.Request) -> web.Response:
        """Returns a conversation."""
        return _json(self._of(request).response)

    async def update(self, request: web.Request) -> web.Response:
        """Replaces the metadata of a conversation."""
        change = await self._read(request, ConversationChange)
        record = self._of(request)
        document = msgspec.json.decode(record.response) | {"metadata": change.metadata}
        record = replace(record, response=Raw(msgspec.json.encode(document)))
        self._put(record, record.input)
        return _json(record.response)

    async def delete(self, request: web.Request) -> web.Response:
        """Deletes a conversation. Its responses stay."""
        record = self._of(request)
        self._store.forget(record.id)
        return _json(msgspec.json.encode({"id": record.id, "object": "conversation.deleted", "deleted": True}))

    async def list_items(self, request: web.Request) -> web.Response:
        """Lists the items, newest first."""
        return _json(listed(self._of(request).input, page_of(request.query)))

    async def add_items(self, request: web.Request) -> web.Response:
        """Adds items, and returns them."""
        body = await self._read(request, NewItems)
        record, new = self._of(request), self._new_items(body.items)
        with self.turn(record.id):
            self._put(record, [*record.input, *new])
        return _json(listed(new, page_of({"order": "asc"})))

    async def item(self, request: web.Request) -> web.Response:
        """Returns one item."""
        item = self._of(request).item(request.match_info["item"])
        if item is None:
            raise _no_item(request)
        return _json(item)

    async def delete_item(self, request: web.Request) -> web.Response:
        """Deletes one item, and returns the conversation."""
        record, name = self._of(request), request.match_info["item"]
        kept = [item for item in record.input if item_id(item) != name]
        if len(kept) == len(record.input):
            raise _no_item(request)
        with self.turn(record.id):
            self._put(record, kept)
        return _json(record.response)

    async def _read(self, request: web.Request, kind: type[B]) -> B:
        data = await read_body(request, self._max_body_bytes)
        return decode_body(msgspec.json.Decoder(kind).decode, data, explain)

    def _new_items(self, items: list[Raw]) -> list[Raw]:
        """The items as they are stored, checked as the input of a request is. Raises Invalid."""
        if len(items) > MAX_ITEMS:
            raise out_of_length("items", "array", "<=", str(MAX_ITEMS), items)
        request = self._dialect.decode(msgspec.json.encode({"input": items}), counting=True)
        self._dialect.understand(request, {}, counting=True)
        return stored_items(request, secrets.token_hex(12))

    def _put(self, record: StoredResponse, items: list[Raw]) -> None:
        # Its age counts from the last change.
        self._store.put(replace(record, input=items, created=time.time()))

    def _check(self) -> None:
        if not self._available:
            raise unsupported("conversation", 'needs `response_store = "memory"` on this server')

    def _of(self, request: web.Request) -> StoredResponse:
        return self._record(request.match_info["id"], request[REQUEST_CONTEXT].tenant)

    def _record(self, id: str, tenant: str | None) -> StoredResponse:
        self._check()
        record = self._store.find(id, tenant) if id.startswith(CONVERSATION_PREFIX) else None
        if record is None:
            raise NotFound(f"Conversation with id '{id}' not found.", param="conversation")
        return record


def _no_item(request: web.Request) -> NotFound:
    id, item = request.match_info["id"], request.match_info["item"]
    return NotFound(f"Item with id '{item}' not found in conversation '{id}'.", param="item_id")


def _json(body: bytes | Raw) -> web.Response:
    return web.Response(body=bytes(body), content_type="application/json")
