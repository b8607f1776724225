"""Token ids are little-endian on the bus, whatever the machine is."""

import sys

import pytest

from schemas.token_ids import pack_ids, unpack_ids


def test_ids_are_little_endian_and_broken_ones_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack_ids([1, 258])
    assert packed == b"\x01\0\0\0\x02\x01\0\0"
    with pytest.raises(ValueError):
        unpack_ids(b"abc")
    other = {"little": "big", "big": "little"}[sys.byteorder]
    monkeypatch.setattr(sys, "byteorder", other)
    assert pack_ids([1, 258]) == b"\0\0\0\x01\0\0\x01\x02", "swapped where it is another"
