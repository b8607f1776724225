"""The parser on the bus: frames of tokens become frames of events."""

from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import replace
from typing_extensions import override

from schemas import subjects
from schemas.control import Cancel
from schemas.events import Failed, Finish, FinishReason
from schemas.frames import EventEntry, EventFrame, TokenFinish, TokenFrame
from services.frontend.turns.interfaces import CancelReason
from services.parser.ledger_writer import LedgerWriter
from services.parser.service import Parser
from services.parser.shard import Shard
from services.parser.turn_parse import TurnParse
from services.runtime.process import Process
from tests.kit.gateway import Stage
from tests.kit.processes import MakeProcess
from tests.kit.waiting import eventually
from tests.parser.shard_turns import SEALER, STOP, VOCABULARY, entry, ids_of

NO_TOKENS = (-1, 1 << 32)
"""Ids that no token can have."""


class CountingLedgerWriter(LedgerWriter):
    def __init__(self) -> None:
        self.turns: list[str] = []

    @override
    def write(self, parse: TurnParse) -> None:
        self.turns.append(parse.stream.turn)


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
    received = await events_of(others)
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


async def test_turn_without_a_frontend_is_cancelled_alone(make_process: MakeProcess) -> None:
    process = await make_process("parser", "p")
    others = await make_process("frontend", "f")
    received = await events_of(others)
    cancels: list[Cancel] = []
    await others.subscribe(
        subjects.cancel("m"),
        lambda delivery: cancels.append(msgspec.json.decode(delivery.data, type=Cancel)),
    )
    await others.bus.flush()
    await Parser(process, Shard(VOCABULARY, SEALER), "m").start()
    await process.bus.flush()

    begun = entry(0, ids_of("Well then"), scored=False, turn="t")
    context = bytes(begun.context).replace(b'"frontend":"f"', b'"frontend":""')
    nowhere = replace(begun, context=msgspec.Raw(context))
    end = TokenFinish(FinishReason.STOP, STOP)
    entries = [nowhere, entry(0, ids_of("Done."), scored=False, turn="u", finish=end)]
    others.publish(subjects.tokens(process.id), TokenFrame("w", 1, entries))
    await eventually(lambda: [(e.turn, type(e.events[-1])) for e in received] == [("u", Finish)])
    await eventually(
        lambda: [(cancel.turn, cancel.reason) for cancel in cancels] == [("t", "unreadable")]
    )


async def events_of(frontend: Process) -> list[EventEntry]:
    """What arrives at a frontend, from now on."""
    received: list[EventEntry] = []
    await frontend.subscribe(
        subjects.events("f"),
        lambda delivery: received.extend(
            msgspec.json.decode(delivery.data, type=EventFrame).entries
        ),
    )
    await frontend.bus.flush()
    return received


@pytest.mark.parametrize("reason", get_args(CancelReason))
async def test_turn_is_dropped_whyever_its_frontend_cancels_it(
    make_process: MakeProcess, reason: CancelReason
) -> None:
    """Also where another choice of the request failed: the ledger gets what was sent."""
    stage = Stage()
    await stage.gateway.start()
    _, opening = await stage.begin("t")
    stage.prepare("t")
    (await opening).cancel(reason)
    (cancel,) = stage.process.published_of(Cancel)

    process = await make_process("parser", "p")
    others = await make_process("frontend", "f")
    received = await events_of(others)
    ledger = CountingLedgerWriter()
    parser = Parser(process, Shard(VOCABULARY, SEALER), "m", ledger)
    await parser.start()
    await process.bus.flush()
    begun = entry(0, ids_of("Well then"), scored=False)
    others.publish(subjects.tokens(process.id), TokenFrame("w", 1, [begun]))
    await eventually(lambda: bool(received))
    others.publish(subjects.cancel("m"), cancel)
    await eventually(lambda: parser.load().running == 0)
    assert ledger.turns == ["t"]


@pytest.mark.parametrize("ids", [[bad, *more] for bad in NO_TOKENS for more in ([], [5])], ids=str)
async def test_ids_that_are_no_tokens_fail_only_their_turn(
    ids: list[int], make_process: MakeProcess
) -> None:
    """Also in a plain stretch, where the ids of an entry are looked up together."""
    parser = await make_process("parser", "p")
    others = await make_process("frontend", "f")
    received = await events_of(others)
    await Parser(parser, Shard(VOCABULARY, SEALER), "m").start()
    await parser.bus.flush()

    begun = ids_of("Well then")
    end = TokenFinish(FinishReason.STOP, STOP)
    frames = [
        [entry(0, begun, scored=False, turn=turn) for turn in "tu"],
        [
            entry(len(begun), ids, scored=False, turn="t"),
            entry(len(begun), ids_of("."), scored=False, turn="u", finish=end),
        ],
    ]
    for number, entries in enumerate(frames, 1):
        others.publish(subjects.tokens(parser.id), TokenFrame("w", number, entries))
        await eventually(lambda: len(received) >= 2)

    def ends() -> dict[str, type]:
        return {
            e.turn: type(event)
            for e in received
            for event in e.events
            if isinstance(event, Finish | Failed)
        }

    await eventually(lambda: ends() == {"t": Failed, "u": Finish})


async def test_a_turn_with_events_that_cannot_be_read_fails_alone(
    make_process: MakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = await make_process("parser", "p")
    others = await make_process("frontend", "f")
    received = await events_of(others)
    await Parser(parser, Shard(VOCABULARY, SEALER), "m").start()
    await parser.bus.flush()
    read = TurnParse.read

    def read_or_fail(parse: TurnParse, room: int) -> Any:
        if parse.stream.turn == "t":
            raise AssertionError("a defect")
        return read(parse, room)

    monkeypatch.setattr(TurnParse, "read", read_or_fail)
    end = TokenFinish(FinishReason.STOP, STOP)
    entries = [
        entry(0, ids_of("Done."), scored=False, turn=turn, finish=end) for turn in ("s", "t", "u")
    ]
    others.publish(subjects.tokens(parser.id), TokenFrame("w", 1, entries))

    def ends() -> dict[str, type]:
        return {e.turn: type(e.events[-1]) for e in received}

    await eventually(lambda: ends() == {"s": Finish, "t": Failed, "u": Finish})
