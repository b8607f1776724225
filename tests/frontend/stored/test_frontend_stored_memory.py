"""Tests stores: limits of count, bytes and time, items by id, tenants."""

import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from schemas.errors import Invalid, TooLarge
from services.frontend.apis.responses.state.input_items import list_page
from services.frontend.apis.responses.state.references import MAX_CHAIN, chain_items
from services.frontend.stored.memory import MemoryStore, StoreLimits
from services.frontend.stored.record import StoredReply, StoredResponse
from tests.frontend.stored.stored_records import item, record
from tests.kit.clock import Clock


def store(clock: Clock | None = None, **limits: Any) -> MemoryStore:
    limits = {"ttl_s": 60.0, "entries": 100, "bytes": 1 << 20} | limits
    return MemoryStore(StoreLimits(**limits), clock or Clock())


async def test_record_is_found_by_its_tenant_until_it_is_deleted() -> None:
    kept = store()
    kept.put(record("a", tenant="t"))
    kept.put(record("a", tenant="t", status="incomplete"))
    for stranger in (None, "u", ""):
        assert await kept.get(StoredResponse, "a", stranger) is None
        assert await kept.item("in_a", stranger) is None
        assert not await kept.delete("a", stranger)
    found = await kept.get(StoredResponse, "a", "t")
    assert found is not None
    assert found.status == "incomplete"
    assert await kept.item("in_a", "t") == item("in_a")
    assert len(kept) == 1
    assert await kept.delete("a", "t")
    assert not await kept.delete("a", "t")
    assert (len(kept), kept.bytes) == (0, 0)
    assert await kept.item("in_a", "t") is None


async def test_least_recently_used_record_is_dropped_first() -> None:
    kept = store(entries=3)
    for id in ("a", "b", "c"):
        kept.put(record(id))
    await kept.get(StoredResponse, "a", None)
    kept.put(record("d"))
    found = [
        id for id in ("a", "b", "c", "d") if await kept.get(StoredResponse, id, None) is not None
    ]
    assert found == ["a", "c", "d"]
    assert await kept.item("in_b", None) is None


async def test_bytes_are_bounded() -> None:
    kept = store(bytes=20_000)
    for number in range(50):
        kept.put(record(f"r{number}", input=[item("i", "x" * 1000)]))
        assert kept.bytes <= 20_000
    assert 5 < len(kept) < 20
    kept.put(record("huge"))
    kept.put(record("huge", input=[item("i", "x" * 30_000)]))
    assert await kept.get(StoredResponse, "huge", None) is None
    assert kept.bytes <= 20_000


async def test_entries_expire() -> None:
    clock = Clock()
    kept = store(clock)
    kept.put(record("a", created=clock.now))
    clock.now += 60
    assert await kept.get(StoredResponse, "a", None) is not None
    clock.now += 0.5
    assert await kept.get(StoredResponse, "a", None) is None
    assert len(kept) == 0


async def test_reply_of_a_thread_is_kept_as_a_response_is() -> None:
    clock = Clock()
    kept = store(clock)
    kept.put(StoredReply(id="a", created=clock.now, tenant="t", messages=[item("i", "x" * 5000)]))
    assert await kept.get(StoredReply, "a", "u") is None
    assert await kept.get(StoredResponse, "a", "t") is None
    assert not await kept.delete("a", "t")
    assert await kept.get(StoredReply, "a", "t") is not None
    assert kept.bytes > 5000
    clock.now += 60.5
    assert await kept.get(StoredReply, "a", "t") is None


async def test_reply_is_claimed_once_until_it_is_released() -> None:
    kept = store()
    reply = StoredReply(id="a", created=1000.0)
    assert await kept.claim(reply, "b") == "b"
    assert await kept.claim(reply, "c") == "b"
    kept.release(reply, "c")  # has no claim
    assert await kept.claim(reply, "c") == "b"
    kept.release(reply, "b")
    assert await kept.claim(reply, "c") == "c"


def test_repeated_item_is_listed_once() -> None:
    """Otherwise a client that reads page after page would never finish."""
    items = [Raw(b'{"id":"%d"}' % number) for number in (1, 2, 1, 3, 2)]
    for newest_first, order in ((False, "123"), (True, "321")):
        found, after = "", None
        for _ in range(3):
            page = json.loads(msgspec.json.encode(list_page(items, after, 1, newest_first)))
            found, after = found + page["last_id"], page["last_id"]
        assert (found, page["has_more"]) == (order, False)


async def test_a_chain_has_a_limit_which_is_not_that_of_a_lost_response() -> None:
    kept = store(entries=MAX_CHAIN + 1, bytes=1 << 30)
    for number in range(MAX_CHAIN + 1):
        kept.put(record(f"r{number}", f"r{number - 1}" if number else None))
    assert len(await chain_items(kept, f"r{MAX_CHAIN - 1}", None)) == 2 * MAX_CHAIN
    with pytest.raises(Invalid, match=f"continues more than {MAX_CHAIN} others"):
        await chain_items(kept, f"r{MAX_CHAIN}", None)


async def test_items_of_a_chain_are_bounded_in_bytes() -> None:
    kept = store(chain_bytes=3000)
    kept.put(record("a", input=[item("i", "x" * 1000)]))
    kept.put(record("b", "a", input=[item("j", "x" * 1000)], events=b"x" * 5000))
    assert len(await chain_items(kept, "b", None)) == 4
    kept.put(record("c", "b", input=[item("k", "x" * 1000)]))
    with pytest.raises(TooLarge, match="more than 3000 bytes"):
        await chain_items(kept, "c", None)
