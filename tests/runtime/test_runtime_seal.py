"""Sealed thoughts come back whole, or not at all."""

import base64
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from services.runtime.storage.seal import Sealer

SEALER = Sealer(b"secret").of(None)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXTS, st.data())
def test_a_sealed_thought_opens_again_and_a_changed_one_is_absent(
    text: str, data: st.DataObject
) -> None:
    blob = SEALER.seal(text)
    assert SEALER.open(blob) == text
    assert SEALER.seal(text) == blob, "a thought of a turn has one seal, wherever it is sealed"
    raw = bytearray(base64.urlsafe_b64decode(blob))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert SEALER.open(base64.urlsafe_b64encode(bytes(raw)).decode()) is None


@given(st.binary(max_size=200))
def test_foreign_blobs_are_absent(data: bytes) -> None:
    assert SEALER.open(base64.urlsafe_b64encode(data).decode()) is None
    assert SEALER.open(data.decode("latin-1")) is None


def test_a_key_file_is_read_and_its_last_newline_is_not_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"secret\n")
    assert Sealer.load(str(path), "m").of(None).open(SEALER.seal("thought")) == "thought"
    assert Sealer.load(None, "m").of(None).open(Sealer.load(None, "m").of(None).seal("x")) == "x"


def test_a_tenant_opens_its_own_seals_only() -> None:
    sealer = Sealer(b"secret")
    tenants = [None, "", "a", "b", "=a"]
    blobs = {tenant: sealer.of(tenant).seal("thought", "t1") for tenant in tenants}
    assert len(set(blobs.values())) == len(tenants)
    for reader in tenants:
        for writer, blob in blobs.items():
            expected = "thought" if reader == writer else None
            assert sealer.of(reader).open(blob) == expected, (reader, writer)
    assert sealer.of("a").open == sealer.of("a").open, "prompts are compared with it"
