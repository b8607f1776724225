"""`conversation` objects: named lists of items that responses continue and add to, in the store of responses."""

import secrets
import time
from typing import TypeVar

import msgspec
from aiohttp import web
from msgspec import Raw, Struct
from msgspec.structs import replace

from schemas.errors import NotFound
from services.frontend.apis.responses.conversations.turns import ConversationTurns, check_size
from services.frontend.apis.responses.errors import explain, not_found
from services.frontend.apis.responses.intake import Intake
from services.frontend.apis.responses.store.input_items import listed, page_of, stored_items
from services.frontend.apis.responses.store.record import CONVERSATION_PREFIX, StoredResponse, item_id
from services.frontend.apis.shared.bounds import Metadata
from services.frontend.apis.shared.decode import decode_body
from services.frontend.apis.shared.mount import json_response
from services.frontend.apis.shared.openai.wording import out_of_length
from services.frontend.http.bodies import read_body
from services.frontend.http.middleware import REQUEST_CONTEXT

CONVERSATIONS = "/v1/conversations"
CONVERSATION = f"{CONVERSATIONS}/{{id}}"
MAX_ITEMS = 20
"""Items that one request may add."""
B = TypeVar("B", bound=Struct)


class ConversationBody(Struct):
    """A new conversation."""

    items: list[Raw] | None = None
    metadata: Metadata | None = None


class ConversationChange(Struct):
    """A change of a conversation."""

    metadata: Metadata


class NewItems(Struct):
    """Items to add."""

    items: list[Raw]


class Conversations:
    """The paths of conversations."""

    def __init__(self, intake: Intake, turns: ConversationTurns) -> None:
        self._store = intake.store
        self._dialect = intake.dialect
        self._max_body_bytes = intake.runner.server.config.max_body_bytes
        self._turns = turns

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Registers every path."""
        router.add_post(CONVERSATIONS, self.create)
        router.add_get(CONVERSATION, self.retrieve, allow_head=False)
        router.add_post(CONVERSATION, self.update)
        router.add_delete(CONVERSATION, self.delete)
        router.add_get(f"{CONVERSATION}/items", self.list_items, allow_head=False)
        router.add_post(f"{CONVERSATION}/items", self.add_items)
        router.add_get(f"{CONVERSATION}/items/{{item}}", self.item, allow_head=False)
        router.add_delete(f"{CONVERSATION}/items/{{item}}", self.delete_item)

    async def create(self, request: web.Request) -> web.Response:
        """Creates a conversation."""
        body = await self._read(request, ConversationBody)
        id, now = f"{CONVERSATION_PREFIX}{secrets.token_hex(24)}", time.time()
        document = {"id": id, "object": "conversation", "created_at": int(now), "metadata": body.metadata or {}}
        response, items = Raw(msgspec.json.encode(document)), self._new_items(body.items or [])
        _, tenant = _key(request)
        await self._store.add(StoredResponse(id, now, response, "completed", tenant, input=items))
        return json_response(response)

    async def retrieve(self, request: web.Request) -> web.Response:
        """Returns a conversation."""
        return json_response((await self._turns.record(*_key(request))).response)

    async def update(self, request: web.Request) -> web.Response:
        """Replaces the metadata of a conversation."""
        change = await self._read(request, ConversationChange)

        def changed(record: StoredResponse) -> StoredResponse:
            document = msgspec.json.decode(record.response) | {"metadata": change.metadata}
            return replace(record, response=Raw(msgspec.json.encode(document)))

        return json_response((await self._turns.revise(*_key(request), changed)).response)

    async def delete(self, request: web.Request) -> web.Response:
        """Deletes a conversation. Its responses stay."""
        id, tenant = _key(request)
        if not id.startswith(CONVERSATION_PREFIX) or not await self._store.delete(id, tenant):
            raise not_found("Conversation", id, "conversation")
        return json_response(msgspec.json.encode({"id": id, "object": "conversation.deleted", "deleted": True}))

    async def list_items(self, request: web.Request) -> web.Response:
        """Lists the items, newest first."""
        page = page_of(request.query)
        return json_response(listed((await self._turns.record(*_key(request))).input, page))

    async def add_items(self, request: web.Request) -> web.Response:
        """Adds items, and returns them."""
        new = self._new_items((await self._read(request, NewItems)).items)
        await self._turns.change(*_key(request), lambda items: [*items, *new])
        return json_response(listed(new, page_of({"order": "asc"})))

    async def item(self, request: web.Request) -> web.Response:
        """Returns one item."""
        item = (await self._turns.record(*_key(request))).item(request.match_info["item"])
        if item is None:
            raise _no_item(request)
        return json_response(item)

    async def delete_item(self, request: web.Request) -> web.Response:
        """Deletes one item, and returns the conversation."""

        def without(items: list[Raw]) -> list[Raw]:
            kept = [item for item in items if item_id(item) != request.match_info["item"]]
            if len(kept) == len(items):
                raise _no_item(request)
            return kept

        return json_response((await self._turns.change(*_key(request), without)).response)

    async def _read(self, request: web.Request, kind: type[B]) -> B:
        data = await read_body(request, self._max_body_bytes)
        return decode_body(msgspec.json.Decoder(kind).decode, data, explain)

    def _new_items(self, items: list[Raw]) -> list[Raw]:
        """The items as they are stored, checked as the input of a request is. Raises Invalid."""
        if len(items) > MAX_ITEMS:
            raise out_of_length("items", "array", "<=", str(MAX_ITEMS), items)
        request = self._dialect.decode(msgspec.json.encode({"input": items}), counting=True)
        self._dialect.understand(request, {}, counting=True)
        stored = stored_items(request, secrets.token_hex(12))
        check_size(stored)
        return stored


def _key(request: web.Request) -> tuple[str, str | None]:
    """The id of the conversation, which a new one has yet to get, and the tenant."""
    return request.match_info.get("id", ""), request[REQUEST_CONTEXT].tenant


def _no_item(request: web.Request) -> NotFound:
    id, item = request.match_info["id"], request.match_info["item"]
    return NotFound(f"Item with id '{item}' not found in conversation '{id}'.", param="item_id")
