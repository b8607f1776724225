"""GET /v1/responses/{id}?stream=true: the events of a response, those that were and those that are still to come."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from aiohttp import web

from services.frontend.dialects.responses.stream import DONE, KEEPALIVE, frame, payloads
from services.frontend.responses.record import StoredResponse, unpack_events
from services.frontend.responses.store import ResponseStore
from services.frontend.sse import EventStream, SseWriter, StreamLimits

LOOK_S = 0.5
"""How often a response that runs in another process is looked at."""

Events = AsyncIterator[Sequence[bytes]]


async def send_events(request: web.Request, events: Events, limits: StreamLimits) -> web.StreamResponse:
    """Sends payloads as a stream, as they come. A client that goes or does not read is let go; nothing else ends."""
    response = EventStream(request)
    writer = SseWriter(request, response, limits, KEEPALIVE, on_slow=lambda: None)
    writer.begin(b"")

    async def feed() -> None:
        try:
            async for some in events:
                writer.write(b"".join(frame(payload) for payload in some))
            writer.write(DONE)
        finally:
            writer.close()

    feeding = asyncio.create_task(feed())
    try:
        await writer.run()
        await feeding
    finally:
        feeding.cancel()
    return response


async def stored_events(record: StoredResponse, after: int) -> Events:
    """The events of a response that has ended, behind number `after`."""
    yield payloads(unpack_events(record.events))[after + 1 :]


async def distant_events(store: ResponseStore, record: StoredResponse, after: int) -> Events:
    """The events of a response that runs in another process: all at once, when it has ended."""
    found: StoredResponse | None = record
    while found is not None and not found.ended:
        await asyncio.sleep(LOOK_S)
        found = await store.get(record.id, record.tenant, patient=False)
    if found is not None and found.events:
        yield payloads(unpack_events(found.events))[after + 1 :]
