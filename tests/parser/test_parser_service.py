"""The parser on the bus: frames of tokens become frames of events."""

import msgspec
import pytest
from typing_extensions import override

from schemas import subjects
from schemas.events import Finish, FinishReason
from schemas.frames import EventEntry, EventFrame, TokenFinish, TokenFrame
from services.parser.ledger_writer import LedgerWriter
from services.parser.service import Parser
from services.parser.shard import Shard
from services.parser.turn_parse import TurnParse
from tests.kit.processes import MakeProcess
from tests.kit.waiting import eventually
from tests.parser.shard_turns import SEALER, STOP, VOCABULARY, entry, ids_of


class BrokenLedgerWriter(LedgerWriter):
    @override
    def write(self, parse: TurnParse) -> None:
        raise AssertionError("a defect")


@pytest.mark.parametrize("ledger", [LedgerWriter(), BrokenLedgerWriter()], ids=["writes", "broken"])
async def test_turns_of_a_frame_end_whatever_happens_to_one_of_them(
    make_process: MakeProcess, ledger: LedgerWriter
) -> None:
    parser = await make_process("parser", "p")
    others = await make_process("frontend", "f")
    received: list[EventEntry] = []
    await others.subscribe(
        subjects.events("f"),
        lambda delivery: received.extend(
            msgspec.json.decode(delivery.data, type=EventFrame).entries
        ),
    )
    await others.bus.flush()
    await Parser(parser, Shard(VOCABULARY, SEALER), "m", ledger).start()
    await parser.bus.flush()

    end = TokenFinish(FinishReason.STOP, STOP)
    entries = [
        entry(0, ids_of("Done."), scored=False, turn=turn, finish=end) for turn in ("t", "u")
    ]
    others.publish(subjects.tokens(parser.id), TokenFrame("w", 1, entries))

    def ended() -> set[str]:
        return {e.turn for e in received for event in e.events if isinstance(event, Finish)}

    await eventually(lambda: ended() == {"t", "u"})
