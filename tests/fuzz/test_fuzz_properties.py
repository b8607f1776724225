"""The checks of the fuzzer detect violated properties."""

from collections.abc import Callable
from random import Random
from typing import cast

import pytest

from fuzz import properties
from fuzz.cases import Case, decode, encode, from_vector, to_vector
from fuzz.generated_turns import generated_turn
from fuzz.mutate import mutate
from fuzz.targets import stories
from schemas.events import BlockEvent, BlockStart, BlockStop, Delta, FinishReason
from services.families import TurnParser
from tests.kit.parser_cases import Block, fold

DOCUMENT = '{"a": [1, -2.5e+3, "x\\n\\u00e9", {}, [], null, true, {"b": "c"}], "d" : false }'
OTHERS = (
    *("[", "x", "{,", '{"a" 1', '{"a":01', '{"a":tru,', '{"a":1,}', '{"a":"\n"', '{"a":"\\x"'),
    *('{"a":1} x', '{"a":-}', '{"a":1.}', '{"a":]', '{"a":[1,]', '{"a":1]', '{"a":"\\u12g'),
    '{"a":{"b":1,,',
)


def test_beginnings_of_json_are_recognized() -> None:
    assert all(properties.begins_object(DOCUMENT[:end]) for end in range(len(DOCUMENT) + 1))
    assert [text for text in OTHERS if properties.begins_object(text)] == []


OPEN, TEXT, CLOSED = BlockStart(0, "text"), Delta(0, 0, "hi"), BlockStop(0, True, 2)
CALL = BlockStart(0, "tool_use", "f")


@pytest.mark.parametrize(
    "events",
    [
        [OPEN, TEXT],
        [OPEN, TEXT, BlockStart(1, "text")],
        [TEXT],
        [BlockStart(1, "text")],
        [OPEN, TEXT, Delta(0, 1, "x")],
        [OPEN, Delta(0, 0, "")],
        [OPEN, TEXT, BlockStop(0, True, 3)],
        [OPEN, Delta(0, 0, " \n"), CLOSED],
        [OPEN, TEXT, BlockStop(0, False, 2)],
        [BlockStart(0, "tool_use", "")],
        [CALL, Delta(0, 0, "[]"), CLOSED],
        [CALL, Delta(0, 0, "{"), BlockStop(0, True, 1)],
        [CALL, Delta(0, 0, "{,"), BlockStop(0, False, 2)],
    ],
)
def test_malformed_stream_is_detected(events: list[BlockEvent]) -> None:
    assert fold([OPEN, TEXT, CLOSED])[0]["text"] == "hi"
    with pytest.raises((AssertionError, ValueError)):
        properties.contents(fold(events))


class Tampered(Case):
    """A case with a faulty parser."""

    def open(self) -> TurnParser:
        return cast(TurnParser, Faulty(super().open(), self.raw))


class Faulty:
    """Returns the events of a parser with one fault, which the text names."""

    def __init__(self, parser: TurnParser, raw: str) -> None:
        self._parser, self._fault = parser, raw.split(maxsplit=1)[0]
        self._held: list[BlockEvent] = []

    @property
    def in_reasoning(self) -> bool:
        return bool(self._parser.in_reasoning) or self._fault == "thinking"

    def feed(self, text: str) -> list[BlockEvent]:
        events = self._parser.feed(text)
        if self._fault == "raise":
            raise RuntimeError
        if self._fault == "late":
            return self._late(events)
        if self._fault == "upper" and len(text) > 1:
            return [self._respelled(event, str.upper) for event in events]
        if self._fault == "surrogate":
            return [self._respelled(event, lambda text: "\ud800" * len(text)) for event in events]
        return events

    @staticmethod
    def _respelled(event: BlockEvent, spell: Callable[[str], str]) -> BlockEvent:
        if isinstance(event, Delta):
            return Delta(event.block, event.offset, spell(event.text))
        return event

    def _late(self, events: list[BlockEvent]) -> list[BlockEvent]:
        """The character at offset 2 leaves with the next one."""
        if len(events) == 1 and isinstance(events[0], Delta) and events[0].offset == 2:
            self._held = events
            return []
        held, self._held = self._held, []
        return [*held, *events]

    def finish(self, reason: FinishReason) -> list[BlockEvent]:
        events = self._late(self._parser.finish(reason))
        if self._fault == "again" and not events:
            return [BlockStart(1, "text")]
        return events


@pytest.mark.parametrize(
    ("raw", "property"),
    [
        ("upper case", "chunk invariance"),
        ("late text", "plain text at once"),
        ("again it speaks", "nothing after the finish"),
        ("surrogate pairs", "events fit the wire"),
        ("thinking aloud", "reasoning is known as such"),
    ],
)
def test_parser_that_violates_a_property_is_detected(raw: str, property: str) -> None:
    properties.check(Case("hermes", raw))
    with pytest.raises(AssertionError, match=property):
        properties.check(Tampered("hermes", raw))


def test_exceptions_of_the_parser_are_propagated() -> None:
    with pytest.raises(RuntimeError):
        properties.check(Tampered("hermes", "raise it"))


def prose(*texts: str) -> list[Block]:
    return [{"type": "text", "name": None, "id": None, "text": text} for text in texts]


def test_invented_lost_and_called_text_is_detected() -> None:
    case = Case("hermes", "a b")
    for texts in (["b", "a"], ["a b", "b"]):
        with pytest.raises(AssertionError, match="prose is from the input"):
            properties.prose_is_from_the_input(case, prose(*texts))
    with pytest.raises(AssertionError, match="nothing is lost"):
        properties.accounted_for(case, prose("a"))
    call: Block = {"type": "tool_use", "name": "f", "id": None, "text": "{}", "complete": True}
    with pytest.raises(AssertionError, match="no call without tools"):
        properties.without_calls(case, [call])
    with pytest.raises(AssertionError, match="every call has a name"):
        properties.calls_are_from_the_input(case, [call])


def test_generated_turn_with_other_blocks_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    case, segments = generated_turn(bytes([9, 0, 0, 1, 3]))
    wrong = (case, [*segments, ("text", "more", {})])
    monkeypatch.setattr("fuzz.targets.stories.generated_turn", lambda data: wrong)
    with pytest.raises(AssertionError, match="blocks are what was written"):
        stories.one(b"")


def test_cases_round_trip_through_bytes_and_vectors() -> None:
    vector = {
        "family": "glm47",
        "raw": "船 <tool_call>",
        "tools": [{}],
        "prompt_ends_in_reasoning": True,
        "finish_reason": "length",
    }
    case = decode(encode(vector))
    for one in (case, from_vector(to_vector(case))):
        assert (one.raw, one.family) == (vector["raw"], vector["family"])
        assert (one.in_reasoning, one.reason) == (True, FinishReason.LENGTH)
    assert "".join(case.pieces()) == case.raw
    assert decode(b"").raw == ""

    chance = Random(0)
    for _ in range(200):
        case = decode(mutate(chance.randbytes(chance.randrange(30)), chance))
        assert (case.prefix + case.raw).encode().decode() == case.prefix + case.raw
