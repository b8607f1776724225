"""A shard's turns: those that fail, are lost, gone, or of another frontend."""

import pytest

from schemas.control import StreamPosition
from schemas.errors import EngineFailed
from schemas.events import Failed, Interrupted
from schemas.frames import TokenEntry
from schemas.token_ids import unpack_ids
from services.parser.shard import Shard
from services.parser.turn_parse import TurnParse
from services.worker.output.token_stream import GONE
from tests.parser.shard_turns import SEALER, VOCABULARY, entry, events, ids_of, scored_blocks


def test_an_unreadable_family_fails_its_own_turn() -> None:
    shard, ids = Shard(VOCABULARY, SEALER), ids_of("Hello there")
    shard.parse(entry(0, ids[:1], scored=False, turn="u"), "w")
    with pytest.raises(ValueError, match="no parser"):
        shard.parse(entry(0, [], scored=False, family="nonesuch"), "w")
    failed, other = shard.turns["t"], shard.turns["u"]
    failed.fail(EngineFailed("no parser").info)
    assert [type(event) for event in events(failed)] == [Failed]
    assert shard.parse(entry(1, ids[1:], scored=False, turn="u"), "w") is other
    assert [text for _, text, _ in scored_blocks(other)] == ["Hello there"]


def test_a_stream_that_its_worker_has_lost_is_interrupted_at_its_position() -> None:
    """The worker answers what was asked: a place that the shard may have passed since, or not have
    reached."""
    shard, ids = Shard(VOCABULARY, SEALER), ids_of("Hello there")
    shard.parse(entry(0, ids, scored=False), "w")
    parse = shard.parse(TokenEntry("t", 1, 0, finish=GONE), "w")
    assert isinstance(parse, TurnParse)
    last = parse.stream.log.terminal
    assert isinstance(last, Interrupted)
    assert unpack_ids(last.token_ids) == ids
    assert shard.parse(TokenEntry("t", 1, len(ids) + 3, finish=GONE), "w") is None


def test_turns_are_those_of_their_frontend() -> None:
    shard = Shard(VOCABULARY, SEALER)
    shard.parse(entry(0, ids_of("Hello"), scored=False), "w")
    assert shard.turns_of("f") == [shard.turns["t"]]
    assert shard.turns_of("other") == []


def test_a_stream_that_is_gone_is_not_requested_again() -> None:
    shard = Shard(VOCABULARY, SEALER)
    assert shard.parse(TokenEntry("unknown", 1, 0, finish=GONE), "w") is None
    assert isinstance(shard.parse(TokenEntry("unknown", 1, 0, [1]), "w"), StreamPosition)
    assert shard.turns == {}
