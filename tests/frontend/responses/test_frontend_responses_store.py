"""Tests stores: limits of count, bytes and time, items by id, tenants."""

import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from schemas.errors import Invalid
from services.frontend.apis.responses import wire_answers
from services.frontend.apis.responses.state.expand import MAX_CHAIN, chain_items
from services.frontend.apis.responses.state.input_items import list_page, page_of
from services.frontend.apis.responses.state.record import (
    StoredResponse,
    item_id,
)
from services.frontend.apis.responses.state.store import ConnectionStore, MemoryStore, StoreLimits


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def store(clock: Clock | None = None, **limits: Any) -> MemoryStore:
    return MemoryStore(
        StoreLimits(**({"ttl_s": 60.0, "entries": 100, "bytes": 1 << 20} | limits)),
        clock or Clock(),
    )


def item(id: str, text: str = "x") -> Raw:
    return Raw(json.dumps({"id": id, "type": "message", "role": "user", "content": text}).encode())


def record(id: str, previous: str | None = None, **changes: Any) -> StoredResponse:
    members: dict[str, Any] = {
        "id": id,
        "created": 1000.0,
        "response": Raw(json.dumps({"id": id, "status": "completed"}).encode()),
        "status": "completed",
        "previous": previous,
        "input": [item(f"in_{id}")],
        "output": [item(f"out_{id}")],
    }
    return StoredResponse(**members | changes)


async def test_record_is_found_until_it_is_deleted() -> None:
    kept = store()
    kept.put(record("a"))
    kept.put(record("a", status="incomplete"))
    found = await kept.get("a", None)
    assert found is not None
    assert found.status == "incomplete"
    assert len(kept) == 1
    assert await kept.delete("a", None)
    assert not await kept.delete("a", None)
    assert await kept.get("a", None) is None
    assert (len(kept), kept.bytes) == (0, 0)
    assert await kept.item("in_a", None) is None


async def test_another_tenant_finds_nothing() -> None:
    kept = store()
    kept.put(record("a", tenant="t"))
    for stranger in (None, "u", ""):
        assert await kept.get("a", stranger) is None
        assert await kept.item("in_a", stranger) is None
        assert not await kept.delete("a", stranger)
    assert await kept.get("a", "t") is not None
    assert await kept.item("in_a", "t") == item("in_a")


async def test_least_recently_used_record_is_dropped_first() -> None:
    kept = store(entries=3)
    for id in ("a", "b", "c"):
        kept.put(record(id))
    await kept.get("a", None)
    kept.put(record("d"))
    found = [id for id in ("a", "b", "c", "d") if await kept.get(id, None) is not None]
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
    assert await kept.get("huge", None) is None
    assert kept.bytes <= 20_000


async def test_entries_expire() -> None:
    clock = Clock()
    kept = store(clock)
    kept.put(record("a"))
    clock.now += 60
    assert await kept.get("a", None) is not None
    clock.now += 0.5
    assert await kept.get("a", None) is None
    assert len(kept) == 0
    kept.put(record("b", created=clock.now))
    clock.now += 100
    kept.put(record("c", created=clock.now))
    assert len(kept) == 1


def chained() -> MemoryStore:
    """A store of a chain of three."""
    kept = store()
    for id, previous in (("a", None), ("b", "a"), ("c", "b")):
        kept.put(record(id, previous))
    return kept


async def test_chain_is_read_to_its_beginning() -> None:
    items = [item_id(raw) for raw in await chain_items(chained(), "c", None)]
    assert items == ["in_a", "out_a", "in_b", "out_b", "in_c", "out_c"]


@pytest.mark.parametrize("missing", ["a", "b", "c"])
async def test_chain_with_a_gap_is_not_found(missing: str) -> None:
    kept = chained()
    await kept.delete(missing, None)
    with pytest.raises(Invalid) as raised:
        await chain_items(kept, "c", None)
    info = raised.value.info
    assert (info.code, info.param) == ("previous_response_not_found", "previous_response_id")
    assert "'c'" in info.message


@pytest.mark.parametrize(
    ("kept", "message"),
    [(record("a", "a"), "not found"), (record("a", status="in_progress"), "has not ended")],
    ids=["circular", "running"],
)
async def test_response_that_cannot_be_continued_is_refused(
    kept: StoredResponse, message: str
) -> None:
    whole = store()
    whole.put(kept)
    with pytest.raises(Invalid, match=message):
        await chain_items(whole, "a", None)
    assert MAX_CHAIN < 100_000


async def test_store_falls_back_to_another_store() -> None:
    common = store()
    own = ConnectionStore(StoreLimits(60.0, 100, 1 << 20), Clock(), common)
    common.put(record("a"))
    own.put(record("b", "a"))
    items = [item_id(raw) for raw in await chain_items(own, "b", None)]
    assert items == ["in_a", "out_a", "in_b", "out_b"]
    assert [await own.item(id, None) for id in ("out_a", "in_b")] == [item("out_a"), item("in_b")]
    assert await own.item("nothing", None) is None


def ids(page: wire_answers.Items) -> list[str]:
    document = json.loads(msgspec.json.encode(page))
    shown = [entry["id"] for entry in document["data"]]
    assert document["object"] == "list"
    ends = (shown[0], shown[-1]) if shown else ("", "")
    assert (document["first_id"], document["last_id"]) == ends
    return [*shown, *(["more"] if document["has_more"] else [])]


def test_lists_have_pages() -> None:
    items = [item(f"i{number}") for number in range(5)]
    assert ids(list_page(items)) == ["i4", "i3", "i2", "i1", "i0"]
    assert ids(list_page(items, limit=2)) == ["i4", "i3", "more"]
    assert ids(list_page(items, "i3", 2)) == ["i2", "i1", "more"]
    assert ids(list_page(items, "i1", 1, newest_first=False)) == ["i2", "more"]
    assert ids(list_page(items, "i3", 1, newest_first=False)) == ["i4"]
    assert ids(list_page(items, "i4", newest_first=False)) == []
    assert ids(list_page([])) == []
    with pytest.raises(Invalid):
        list_page(items, "i9")


def test_repeated_item_is_listed_once() -> None:
    """Otherwise a client that reads page after page would never finish."""
    items = [Raw(b'{"id":"%d"}' % number) for number in (1, 2, 1, 3, 2)]
    for newest_first, order in ((False, "123"), (True, "321")):
        found, after = "", None
        for _ in range(3):
            page = json.loads(msgspec.json.encode(list_page(items, after, 1, newest_first)))
            found, after = found + page["last_id"], page["last_id"]
        assert (found, page["has_more"]) == (order, False)


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ({"limit": "101"}, "limit", "integer_above_max_value"),
        ({"limit": "-1"}, "limit", "integer_below_min_value"),
        ({"limit": "ten"}, "limit", "invalid_type"),
        ({"order": "up"}, "order", "invalid_value"),
    ],
)
def test_invalid_page_query_is_refused(query: dict[str, str], param: str, code: str) -> None:
    with pytest.raises(Invalid) as raised:
        page_of(query)
    assert (raised.value.info.param, raised.value.info.code) == (param, code)
