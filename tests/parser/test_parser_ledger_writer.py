"""The entries that a parser writes."""

from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from schemas.ledger import LedgerContext, LedgerEntry
from services.ledger.signer import EntrySigner
from services.parser import ledger_writer
from services.parser.ledger_writer import BusLedgerWriter
from tests.parser.shard_turns import RUN, parsed

CALL = '<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>'


class BusProcess:
    """A process whose bus keeps what is published."""

    def __init__(self) -> None:
        self.on_reconnect: list[Any] = []
        self.metrics = CollectorRegistry()
        self.bus = self
        self.published: list[LedgerEntry] = []

    def publish(self, _subject: str, data: bytes) -> bool:
        self.published.append(msgspec.json.decode(data, type=LedgerEntry))
        return True


def test_turn_and_its_beginnings_are_written_unless_they_are_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn of three calls has two beginnings: after the first call and after the second."""
    process: Any = BusProcess()
    writer = BusLedgerWriter(process, EntrySigner(b"test"), None)
    context = LedgerContext(b"state", 3, b"head")
    turn = parsed(f"Look.\n{CALL}\n{CALL}\n{CALL}", scored=False, tools=[RUN], ledger=context)
    writer.write(turn)
    assert [entry.beginning for entry in process.published] == [False, True, True]
    monkeypatch.setattr(ledger_writer, "MAX_ENTRY_BYTES", 10)
    writer.write(turn)
    assert len(process.published) == 3
    assert (writer.written, writer.too_large) == (1, 1)
