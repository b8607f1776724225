"""Siblings in memory are found by the digests of their ids, and bounded like all entries."""

from schemas.ledger import LedgerContext, LedgerEntry
from services.ledger.lookup.store import EntryStore

CONTEXT = LedgerContext(b"state", 0, b"hash")


def entry(number: int, key: bytes = b"key", *, beginning: bool = False) -> LedgerEntry:
    digest = number.to_bytes(8, "big")
    return LedgerEntry(
        "m",
        key,
        CONTEXT,
        b"ids!" * 10,
        beginning=beginning,
        id_digests=[digest],
        mac=b"mac" + digest,
    )


def test_siblings_are_found_by_marks_and_newest_first() -> None:
    store = EntryStore(1 << 20)
    for number in range(100):
        assert store.add(entry(number))
    assert not store.add(entry(5))
    found = store.find_identified(b"key", [b"unknown", (42).to_bytes(8, "big")])
    assert found is not None
    assert found.entry == entry(42)
    assert store.find_identified(b"other", [(42).to_bytes(8, "big")]) is None
    assert [stored.entry for stored in store.find(b"key", 3)] == [entry(99), entry(98), entry(97)]
    assert store.is_complete(b"key")


def test_beginnings_hide_no_sibling_and_are_found_by_marks_only() -> None:
    store = EntryStore(1 << 20)
    for number in range(100):
        store.add(entry(number, beginning=number % 10 > 0))
    assert [stored.entry for stored in store.find(b"key", 3)] == [entry(90), entry(80), entry(70)]
    found = store.find_identified(b"key", [(99).to_bytes(8, "big")])
    assert found is not None
    assert found.entry.beginning


def test_siblings_are_as_cheap_as_sessions() -> None:
    alike, different = EntryStore(100_000), EntryStore(100_000)
    for number in range(1000):
        alike.add(entry(number))
        different.add(entry(number, key=number.to_bytes(8, "big")))
    assert alike.size == different.size <= 100_000
    assert len(alike) == len(different) < 100
    assert not alike.is_complete(b"key")
    assert alike.find_identified(b"key", [bytes(8)]) is None


def test_sibling_in_use_outlives_others() -> None:
    store = EntryStore(20_000)
    store.add(entry(0))
    for number in range(1, 100):
        assert store.get(entry(0).mac) is not None
        store.add(entry(number))
    assert len(store.find(b"key", 100)) == len(store) < 20
    for number in range(100, 200):
        store.add(entry(number, key=b"another"))
    assert store.find(b"key", 100) == []
    assert store.is_complete(b"key"), "it has no entries"
