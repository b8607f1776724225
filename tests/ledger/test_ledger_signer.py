"""Only entries with a valid signature are read."""

import msgspec
from msgspec.structs import replace

from services.ledger.signer import EntrySigner
from tests.kit.ledger_turns import SIGNER, Session, signed


def test_only_signed_entries_are_read(session: Session) -> None:
    entry = signed(session)
    data = msgspec.json.encode(entry)
    assert SIGNER.read(data) == entry
    changed = (data[:-9] + data[-8:], data.replace(b'"m"', b'"n"', 1), b"\xff" + data)
    for bad in (b"", b"null", b"[]", b"{}", *changed):
        assert SIGNER.read(bad) is None
    assert EntrySigner(b"other").read(data) is None
    assert SIGNER.read(msgspec.json.encode(replace(entry, ids=entry.ids[4:]))) is None
    assert not session.ledger.add(replace(entry, model="n")), "an entry of another model"
