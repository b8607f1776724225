"""Ids of calls: unique whatever the model repeats, and of a form that every API accepts."""

import re

from schemas.conversation import ToolSpec
from schemas.events import BlockStart, FinishReason
from schemas.frames import TokenFinish
from schemas.requests import ParseContext
from services.families import find_family
from services.parser.turn_parse import TurnParse
from services.parser.turn_stream import TurnStream
from services.runtime.streams.cursor import Cursor
from services.tokenization.detokenizer import FamilyVocabulary
from tests.kit.every import for_rows
from tests.parser.shard_turns import SEALER, VOCABULARY, ids_of

LOOK = ToolSpec("look", schema={"type": "object", "properties": {"where": {"type": "string"}}})
KIMI = (
    '<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{"where": "a"}<|tool_call_end|>'
)
MISTRAL = '{"name": "look", "arguments": {"where": "a"}, "id": "abcdefghi"}'


def call_ids(family: str, text: str, turn: str) -> list[str]:
    stream = TurnStream(turn, 1, ParseContext("m", family, "f", 3, tools=[LOOK]), "w")
    parse = TurnParse.open(stream, FamilyVocabulary(VOCABULARY, find_family(family)), SEALER)
    parse.feed(ids_of(text))
    parse.finish(TokenFinish(FinishReason.STOP, None))
    events = parse.stream.log.read(Cursor())[0]
    return [event.call_id or "" for event in events if isinstance(event, BlockStart)]


@for_rows(
    [
        ("kimi_k2", f"<|tool_calls_section_begin|>{KIMI}{KIMI}<|tool_calls_section_end|>"),
        ("mistral", f"[TOOL_CALLS][{MISTRAL}, {MISTRAL}]"),
    ]
)
def test_ids_are_unique_although_the_model_repeats_its_own(family: str, text: str) -> None:
    """Twice in a turn, and again in the next one."""
    found = [id for turn in ("a" * 24, "b" * 24) for id in call_ids(family, text, turn)]
    assert len(found) == len(set(found)) == 4
    assert [id for id in found if not re.fullmatch("[a-zA-Z0-9_-]{9,64}", id)] == []
