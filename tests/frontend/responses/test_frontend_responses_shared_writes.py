"""A response that the bucket does not take: this frontend keeps it, and the log says so."""

import asyncio
from collections.abc import MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Raw

from schemas.errors import TooLarge, TurnwireError, Unavailable
from services.frontend.apis.responses.state.record import StoredResponse
from services.frontend.apis.responses.state.store import SharedStore, StoreLimits
from tests.kit.frontend import log_into

RESPONSE = StoredResponse("resp_1", 1000.0, Raw(b'{"id":"resp_1"}'), status="completed")


@pytest.mark.parametrize(
    ("error", "reason"), [(TooLarge("8 MB"), "too large"), (Unavailable("no bus"), "no bus")]
)
async def test_refused_write_is_logged_once(error: TurnwireError, reason: str) -> None:
    async def refuse(_key: str, _value: bytes) -> None:
        raise error

    sharing: Any = SimpleNamespace(
        id="frontend-1",
        bucket=SimpleNamespace(put=refuse),
        spawn=lambda work, _name: asyncio.create_task(work),
    )
    lines: list[MutableMapping[str, Any]] = []
    limits = StoreLimits(ttl_s=60, entries=10, bytes=1 << 20)
    store = SharedStore(limits, lambda: 1000.0, sharing, log_into(lines))
    store.put(RESPONSE)
    await store.wait_for_writes()
    assert await store.get("resp_1", None) == RESPONSE
    ((said, why),) = [(line["event"], line["reason"]) for line in lines]
    assert (said, why) == ("responses.not_shared", reason)
