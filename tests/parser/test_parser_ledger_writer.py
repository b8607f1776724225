"""The entries that a parser writes: which are written, and which are only counted."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from schemas.ledger import LedgerContext, LedgerEntry
from services.ledger.signer import EntrySigner
from services.parser import ledger_writer
from services.parser.ledger_writer import BusLedgerWriter
from services.parser.turn_parse import TurnParse
from tests.parser.shard_turns import RUN, VOCABULARY, parsed

CALL = '<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>'


class BusProcess:
    """A process whose bus keeps what is published."""

    def __init__(self) -> None:
        self.on_reconnect: list[Callable[[], None]] = []
        self.metrics = CollectorRegistry()
        self.bus = self
        self.published: list[LedgerEntry] = []

    def publish(self, _subject: str, data: bytes) -> bool:
        self.published.append(msgspec.json.decode(data, type=LedgerEntry))
        return True


@pytest.fixture
def process() -> BusProcess:
    return BusProcess()


@pytest.fixture
def writer(process: Any) -> BusLedgerWriter:
    return BusLedgerWriter(process, EntrySigner(b"test"), VOCABULARY, None)


@pytest.fixture
def turn() -> TurnParse:
    """A turn of three calls, which has two beginnings: after the first call and after the second."""
    context = LedgerContext(b"state", 3, b"head")
    return parsed(f"Look.\n{CALL}\n{CALL}\n{CALL}", scored=False, tools=[RUN], ledger=context)


def test_a_turn_and_its_beginnings_are_written(
    process: BusProcess, writer: BusLedgerWriter, turn: TurnParse
) -> None:
    writer.write(turn)
    assert [entry.beginning for entry in process.published] == [False, True, True]
    assert (writer.written, writer.too_large) == (1, 0)


def test_a_turn_that_is_too_large_is_counted_once(
    process: BusProcess, writer: BusLedgerWriter, turn: TurnParse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_writer, "MAX_ENTRY_BYTES", 10)
    writer.write(turn)
    assert process.published == []
    assert (writer.written, writer.too_large) == (0, 1)
