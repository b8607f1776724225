"""Blocks of an answer of several turns have numbers without a gap, and hidden ones are left out."""

from schemas.conversation import HostedTool
from schemas.events import BlockStart, Delta, Dispatch, EventInBlock, TurnEvent
from services.frontend.turns.hosted.answer_blocks import AnswerBlocks
from tests.kit.events import call, finish, text

HOSTED = {
    "find": HostedTool("tool_search_bm25", hidden=True),
    "web_search": HostedTool("web_search"),
}


def translated(blocks: AnswerBlocks, *events: TurnEvent) -> list[EventInBlock]:
    """What the client gets of a turn's events."""
    answer = [blocks.translate(event) for event in events]
    return [event for event in answer if isinstance(event, EventInBlock)]


def made(block: int, name: str) -> list[TurnEvent]:
    return call(block, name, "{}", call_id=f"c{block}")


def shown(events: list[EventInBlock]) -> list[tuple[int, str, str | None]]:
    """The number, the kind and the name of each block."""
    return [(event.block, event.kind, event.name) for event in events if type(event) is BlockStart]


def test_numbers_continue_in_the_next_turn() -> None:
    blocks = AnswerBlocks(HOSTED)
    first = translated(blocks, *text(0, "I look."), *made(1, "web_search"))
    assert shown(first) == [(0, "text", None), (1, "hosted", "web_search")]
    assert not any(isinstance(event, Dispatch) for event in first), "the server runs it"
    blocks.end_turn(finish(2))
    assert blocks.count == 2
    second = translated(blocks, *text(0, "Found."), *made(1, "look"))
    assert shown(second) == [(2, "text", None), (3, "tool_use", "look")]
    assert [event.block for event in second if isinstance(event, Dispatch)] == [3]


def test_hidden_blocks_leave_no_gap() -> None:
    blocks = AnswerBlocks(HOSTED)
    assert blocks.are_those_of_turn
    first = translated(blocks, *text(0, "a"), *made(1, "find"), *made(2, "look"), *made(3, "find"))
    assert shown(first) == [(0, "text", None), (1, "tool_use", "look")]
    assert not blocks.are_those_of_turn
    blocks.end_turn(finish(4))
    assert blocks.count == 2
    last = translated(blocks, *text(0, "b"))
    assert {event.block for event in last} == {2}
    assert any(isinstance(event, Delta) for event in last)


def test_end_of_a_turn_is_not_that_of_the_answer() -> None:
    assert AnswerBlocks(HOSTED).translate(finish(0)) is None
