"""Plain text takes a fast path through the shard, which gives the same turn."""

from typing import Any

from schemas.events import BlockStart, Delta, FinishReason, Interrupted
from schemas.frames import TokenEntry, TokenFinish
from services.parser.fast_path import NO_FAST_PATH, UNREAD
from services.parser.shard import Shard
from services.parser.turn_parse import TurnParse
from services.runtime.streams.cursor import Cursor, Verdict
from services.worker.output.token_stream import GONE
from tests.kit.every import for_each
from tests.kit.examples import chances
from tests.parser.shard_turns import (
    RUN,
    SEALER,
    STOP,
    VOCABULARY,
    entry,
    finish,
    ids_of,
    parsed,
    scored_blocks,
)

STREAM = (
    "Hm, a < b.\n\nGrüße, 船は 🌊👩‍🚀 turn\n</think>\n\nI run it.\n"
    '<tool_call>\n{"name": "run", "arguments": {"cmd": "echo \\"x\\" <a>\\n 🌊"}}\n</tool_call>\nDone, 1 < 2.\n'
)


class Reader:
    """Reads a turn as the service does: the fast path by its deltas, all else out of the log, in
    rooms of any size."""

    def __init__(self, parse: TurnParse, room: int) -> None:
        self.parse = parse
        self.room = room
        self.cursor = Cursor()
        self.got: list[Any] = []

    def read(self) -> None:
        parse = self.parse
        unread = parse.fast.next_entry(self.room)
        if unread is not None:
            events: list[Any] = unread[0].events
        else:
            events, left = list[Any](), 0
            while not left:
                more, left = parse.read(self.room)
                events += more
            parse.enter_fast_path()
        self.take(events)

    def take(self, events: list[Any]) -> None:
        for event in events:
            taken = self.cursor.accept(event)
            assert taken is not Verdict.GAP
            if not isinstance(taken, Verdict):
                self.got.append(taken)

    def blocks(self) -> list[list[Any]]:
        found: list[list[Any]] = []
        for event in self.got:
            if isinstance(event, BlockStart):
                found.append([event, ""])
            elif isinstance(event, Delta):
                found[-1][1] += event.text
            else:
                found.append([event])
        return found


@for_each(["", "Done"])
def test_the_fast_path_gives_the_same_turn(stop: str) -> None:
    """Reads, rewinds and frames at any time: the turn is the same as token by token."""
    ids = ids_of(STREAM)
    context: dict[str, Any] = {"in_reasoning": True, "tools": [RUN], "stop": [stop] if stop else []}
    slow = Reader(parsed(ids, cuts=1, scored=False, **context), 10_000)
    slow.read()
    last = entry(len(ids), [], scored=False, finish=TokenFinish(FinishReason.STOP, STOP))
    for chance in chances(f"fast path {stop}", 75):
        shard = Shard(VOCABULARY, SEALER)
        shard.parse(entry(0, [], scored=False, **context), "w")
        reader = Reader(shard.turns["t"], chance.choice((3, 20, 10_000)))
        parse, at, fast = reader.parse, 0, 0
        while at < len(ids) and not parse.ended:
            step = chance.choice((1, 1, 1, 2, 7))
            piece = entry(at, ids[at : at + step], scored=False, **context)
            if parse.fast.append(piece):
                fast += 1
            else:
                shard.parse(piece, "w")
            at += step
            action = chance.choice(("read", "read", "read", "wait", "again"))
            if action == "again":
                parse.rewind(reader.cursor.position("t", 1))
            if action != "wait":
                reader.read()
        assert not parse.fast.append(last)
        shard.parse(last, "w")
        reader.read()
        assert reader.blocks() == slow.blocks()
        assert scored_blocks(parse) == scored_blocks(slow.parse)
        assert finish(parse) == finish(slow.parse)
        assert parse.stream.ids == slow.parse.stream.ids
        assert not (fast and stop)


def on_fast_path(text: str) -> tuple[Shard, TurnParse]:
    shard = Shard(VOCABULARY, SEALER)
    shard.parse(entry(0, ids_of(text), scored=False), "w")
    parse = shard.turns["t"]
    parse.read(10_000)
    parse.enter_fast_path()
    return shard, parse


def test_the_fast_path_takes_only_the_next_tokens_of_this_attempt() -> None:
    shard, parse = on_fast_path("Hello there")
    have = len(parse.stream.ids)
    (token,) = ids_of("!")
    mark = ids_of("<tool_call>")
    for other in (
        TokenEntry("t", 1, have - 1, [token]),  # had
        TokenEntry("t", 1, have + 1, [token]),  # one is missing
        TokenEntry("t", 2, have, [token]),  # of another attempt
        TokenEntry("t", 1, have, [token], cached=1),
        TokenEntry("t", 1, have, [token], finish=TokenFinish(FinishReason.LENGTH)),
        TokenEntry("t", 1, have, [token, *mark]),
        TokenEntry("t", 1, have, ids_of("🌊")[:1]),
        TokenEntry("t", 1, have, [10**6]),
    ):
        assert not parse.fast.append(other)
        assert len(parse.stream.ids) == have
    assert parse.fast.append(TokenEntry("t", 1, have, [token]))
    assert parse.fast.next_entry(1) is None  # it would take all room
    unread = parse.fast.next_entry(3)
    assert unread is not None
    assert (unread[0].events, unread[1]) == ([Delta(0, len("Hello there"), "!")], 2)
    assert parse.fast is not NO_FAST_PATH
    shard.parse(TokenEntry("t", 1, have + 1, finish=GONE), "w")
    assert not parse.fast.append(TokenEntry("t", 1, have + 1, [token]))
    assert [type(event) for event in parse.read(10_000)[0]] == [Interrupted]
    parse.enter_fast_path()
    assert parse.fast is NO_FAST_PATH


def test_a_turn_that_is_not_read_leaves_the_fast_path() -> None:
    _, parse = on_fast_path("Hello")
    (token,) = ids_of("!")
    count = 0
    while parse.fast.append(TokenEntry("t", 1, len(parse.stream.ids), [token])):
        count += 1
    assert UNREAD < count < 2 * UNREAD
    assert parse.read(10_000)[0] == [Delta(0, 5, "!" * count)]
