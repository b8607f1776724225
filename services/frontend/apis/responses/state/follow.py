"""Follows a running or stored response to its end: GET /v1/responses/{id}?stream=true."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeAlias

from aiohttp import web

from services.frontend.apis.responses.render.events import KEEPALIVE, payloads, sse_frame
from services.frontend.apis.responses.state.recording import unpack_events
from services.frontend.apis.shared.openai.chunks import DONE
from services.frontend.http.sse import EventStream, SseWriter
from services.frontend.stored.memory import MemoryStore
from services.frontend.stored.record import StoredResponse
from services.runtime.config.frontend import FrontendConfig

POLL_S = 0.5
"""The pause between two reads of a response that runs in another process."""
CANCEL_POLLS = 20
CANCEL_POLL_S = 0.1
"""How often a response is read while another process cancels it, and the pause before each read."""
EventPayloads: TypeAlias = AsyncIterator[Sequence[bytes]]
"""Payloads of events, in batches, as they come."""


async def send_events(
    http: web.Request, events: EventPayloads, config: FrontendConfig
) -> web.StreamResponse:
    """Sends events as a stream. A client that hangs up or does not read ends only this stream."""
    response = EventStream(http)
    writer = SseWriter(http, response, config, KEEPALIVE, on_slow=lambda: None)
    writer.begin(b"")
    feeding = asyncio.create_task(_feed(writer, events))
    try:
        await writer.run()
        await feeding
    finally:
        feeding.cancel()
    return response


async def stored_events(store: MemoryStore, record: StoredResponse, after: int) -> EventPayloads:
    """Yields the events after number `after`; if the response runs in another process, once it has
    ended."""
    latest: StoredResponse | None = record
    while latest is not None and not latest.ended:
        await asyncio.sleep(POLL_S)
        latest = await store.get(StoredResponse, record.id, record.tenant)
    if latest is not None and latest.events:
        first = after + 1
        yield payloads(unpack_events(latest.events))[first:]


async def wait_for_end(store: MemoryStore, record: StoredResponse) -> StoredResponse:
    """Waits for a moment until a response has ended that another process cancels."""
    for _ in range(CANCEL_POLLS):
        await asyncio.sleep(CANCEL_POLL_S)
        record = await store.get(StoredResponse, record.id, record.tenant) or record
        if record.ended:
            break
    return record


async def _feed(writer: SseWriter, events: EventPayloads) -> None:
    try:
        async for batch in events:
            writer.write(b"".join(map(sse_frame, batch)))
        writer.write(DONE)
    finally:
        writer.close()
