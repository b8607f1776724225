"""Sends the events of a stored or running response: GET /v1/responses/{id}?stream=true."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from aiohttp import web

from services.frontend.apis.responses.answer.recording import unpack_events
from services.frontend.apis.responses.answer.stream import DONE, KEEPALIVE, payloads, sse_frame
from services.frontend.apis.responses.store.memory import MemoryStore
from services.frontend.apis.responses.store.record import StoredResponse
from services.frontend.http.sse import EventStream, SseWriter, StreamLimits

POLL_S = 0.5
"""Between two reads of a response that runs in another process."""

Events = AsyncIterator[Sequence[bytes]]


async def send_events(request: web.Request, events: Events, limits: StreamLimits) -> web.StreamResponse:
    """Sends payloads as a stream, as they come. A client that hangs up or does not read ends nothing else."""
    response = EventStream(request)
    writer = SseWriter(request, response, limits, KEEPALIVE, on_slow=lambda: None)
    writer.begin(b"")

    async def feed() -> None:
        try:
            async for batch in events:
                writer.write(b"".join(map(sse_frame, batch)))
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


async def stored_events(store: MemoryStore, record: StoredResponse, after: int) -> Events:
    """The events after number `after`. Those of a response that runs in another process come when it has ended."""
    found: StoredResponse | None = record
    while found is not None and not found.ended:
        await asyncio.sleep(POLL_S)
        found = await store.get(record.id, record.tenant, patient=False)
    if found is not None and found.events:
        yield payloads(unpack_events(found.events))[after + 1 :]
