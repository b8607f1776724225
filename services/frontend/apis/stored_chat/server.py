"""Creates chat completions, stores those with `store: true`, and serves what is stored.

They are in the store of the Responses API: with its limits, shared by several frontends where that is configured, and
visible only to the key that made them.
"""

import asyncio
import time
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Raw, Struct
from msgspec.structs import replace

from schemas.errors import Invalid, NotFound
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.chat.stream import StoredStream
from services.frontend.apis.responses.server import RESPONSES
from services.frontend.apis.responses.store.input_items import list_document, listed, page_of
from services.frontend.apis.responses.store.memory import MemoryStore
from services.frontend.apis.responses.store.record import CHAT_PREFIX, StoredResponse
from services.frontend.apis.shared.answers.documents import StreamCollector
from services.frontend.apis.shared.bounds import Metadata
from services.frontend.apis.shared.decode import decode_body
from services.frontend.apis.shared.mount import Mount, json_response
from services.frontend.apis.shared.openai.wording import explainer
from services.frontend.http.bodies import apart, read_body
from services.frontend.http.middleware import REQUEST_CONTEXT
from services.frontend.turns.interfaces import Collector, Renderer


class Change(Struct):
    """What can be changed of a stored completion."""

    metadata: Metadata


class _Body(Struct):
    messages: list[dict[str, Any]] = []


READ_AT_ONCE = 32
"""Completions that are read from the store at once, to make a page."""
_body = msgspec.json.Decoder(_Body).decode
_change = msgspec.json.Decoder(Change).decode
_explain = explainer({})


class StoredChats:
    """The paths of chat completions."""

    def __init__(self, mount: Mount, dialect: Chat) -> None:
        self._mount = mount
        self._dialect = dialect

    def add_to(self, router: web.UrlDispatcher, path: str) -> None:
        """Registers every path."""
        router.add_post(path, self.create)
        router.add_get(path, self.list, allow_head=False)
        router.add_get(f"{path}/{{id}}", self.retrieve, allow_head=False)
        router.add_post(f"{path}/{{id}}", self.update)
        router.add_delete(f"{path}/{{id}}", self.delete)
        router.add_get(f"{path}/{{id}}/messages", self.messages, allow_head=False)

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Creates a completion, whole or as a stream, and stores it on request."""
        created = time.time()  # the answer has whole seconds, which do not order the list
        body, metadata = b"", None

        async def read() -> Any:
            nonlocal body, metadata
            body = await read_body(request, self._mount.config.max_body_bytes)
            ask = await apart(len(body), lambda: self._dialect.parse(body, request.headers))
            metadata = ask.metadata
            if metadata is None:
                body = b""
            return ask

        def store(answer: Renderer | Collector) -> None:
            document = answer.document if isinstance(answer, StoredStream | StreamCollector) else None
            if metadata is None or document is None:
                return
            record = StoredResponse(
                id=document["id"],
                created=created,
                response=Raw(msgspec.json.encode(document | {"metadata": metadata})),
                status="completed",
                tenant=request[REQUEST_CONTEXT].tenant,
                messages=_stored_messages(body, document["id"]),
            )
            self._store(request).put(record)

        return await self._mount.server.serve(request, self._dialect, read, on_end=store)

    async def list(self, request: web.Request) -> web.Response:
        """Lists what is stored, oldest first: in all or with some model and metadata."""
        query, tenant, store = request.query, request[REQUEST_CONTEXT].tenant, self._store(request)
        wanted = {name[9:-1]: value for name, value in query.items() if name.startswith("metadata[")}
        page = page_of(query, order="asc")
        ids = await store.chats(tenant)
        if page.newest_first:
            ids.reverse()
        if page.after is not None:
            if page.after not in ids:
                raise Invalid(f"Item with id '{page.after}' not found.", param="after")
            ids = ids[ids.index(page.after) + 1 :]
        found: list[Raw] = []
        for start in range(0, len(ids), READ_AT_ONCE):
            batch = ids[start : start + READ_AT_ONCE]
            records = await asyncio.gather(*(store.get(id, tenant, patient=False) for id in batch))
            for record in filter(None, records):
                document = msgspec.json.decode(record.response)
                if (
                    query.get("model", document["model"]) == document["model"]
                    and wanted.items() <= document["metadata"].items()
                ):
                    found.append(record.response)
            if len(found) > page.limit:
                break
        return json_response(list_document(found[: page.limit], has_more=len(found) > page.limit))

    async def retrieve(self, request: web.Request) -> web.Response:
        """Returns a stored completion."""
        return json_response((await self._record(request)).response)

    async def update(self, request: web.Request) -> web.Response:
        """Replaces the metadata of a stored completion."""
        data = await read_body(request, self._mount.config.max_body_bytes)
        change = decode_body(_change, data, _explain)
        record = await self._record(request)
        document = msgspec.json.decode(record.response) | {"metadata": change.metadata}
        response = Raw(msgspec.json.encode(document))
        self._store(request).change(replace(record, response=response))
        return json_response(response)

    async def delete(self, request: web.Request) -> web.Response:
        """Deletes a stored completion."""
        id = (await self._record(request)).id
        await self._store(request).delete(id, request[REQUEST_CONTEXT].tenant)
        return json_response(msgspec.json.encode({"id": id, "object": "chat.completion.deleted", "deleted": True}))

    async def messages(self, request: web.Request) -> web.Response:
        """Lists the messages of a stored completion's request, oldest first."""
        return json_response(listed((await self._record(request)).messages, page_of(request.query, order="asc")))

    def _store(self, request: web.Request) -> MemoryStore:
        return request.app[RESPONSES].store

    async def _record(self, request: web.Request) -> StoredResponse:
        id = request.match_info["id"]
        record = (
            await self._store(request).get(id, request[REQUEST_CONTEXT].tenant) if id.startswith(CHAT_PREFIX) else None
        )
        if record is None:
            raise NotFound(f"Chat completion with id '{id}' not found.", param="completion_id")
        return record


def _stored_messages(body: bytes, id: str) -> list[Raw]:
    """The messages of a request body, each with an id. `content` has the texts of a list of parts."""
    return [
        Raw(msgspec.json.encode(_listed(message, f"{id}-{number}")))
        for number, message in enumerate(_body(body).messages)
    ]


def _listed(message: dict[str, Any], id: str) -> dict[str, Any]:
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    if parts is not None:
        texts = [part.get("text") for part in parts if isinstance(part, dict)]
        content = "".join(text for text in texts if isinstance(text, str)) or None
    return {"refusal": None, "name": None, **message, "id": id, "content": content, "content_parts": parts}
