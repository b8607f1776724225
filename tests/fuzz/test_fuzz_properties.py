"""The checks of the fuzzer detect violated properties."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import cast

import pytest

from fuzz import properties
from fuzz.cases import Case, decode, encode, from_vector, to_vector
from fuzz.generated_turns import generated_turn
from fuzz.json_prefix import is_object_prefix
from fuzz.mutate import mutate
from fuzz.properties import Block, PropertyViolated, fold
from fuzz.reduce import reduced
from fuzz.seed import seed
from fuzz.targets import TARGETS, stories
from fuzz.toolsets import of_the_vectors
from schemas.events import BlockEvent, BlockStart, BlockStop, Delta, FinishReason
from services.families import TurnParser

OPEN, TEXT, CLOSED = BlockStart(0, "text"), Delta(0, 0, "hi"), BlockStop(0, True, 2)
DOCUMENT = '{"a": [1, -2.5e+3, "x\\n\\u00e9", {}, [], null, true, {"b": "c"}], "d" : false }'


@pytest.mark.parametrize(
    ("property", "events"),
    [
        ("every block is closed", [OPEN, TEXT]),
        ("one open block", [OPEN, TEXT, BlockStart(1, "text")]),
        ("one open block", [TEXT]),
        ("contiguous block numbers", [BlockStart(1, "text")]),
        ("contiguous offsets", [OPEN, TEXT, Delta(0, 1, "x")]),
        ("no empty delta", [OPEN, Delta(0, 0, "")]),
        ("length", [OPEN, TEXT, BlockStop(0, True, 3)]),
        ("no blank block", [OPEN, Delta(0, 0, " \n"), CLOSED]),
        ("prose is complete", [OPEN, TEXT, BlockStop(0, False, 2)]),
        ("a call has a name", [BlockStart(0, "tool_use", "")]),
        (
            "arguments are a JSON object",
            [BlockStart(0, "tool_use", "f"), Delta(0, 0, "[]"), CLOSED],
        ),
        (
            "arguments are a JSON object",
            [BlockStart(0, "tool_use", "f"), Delta(0, 0, "{"), BlockStop(0, True, 1)],
        ),
        (
            "arguments are a prefix of a JSON object",
            [BlockStart(0, "tool_use", "f"), Delta(0, 0, "{,"), BlockStop(0, False, 2)],
        ),
    ],
)
def test_malformed_stream_is_detected(property: str, events: list[BlockEvent]) -> None:
    with pytest.raises(PropertyViolated) as caught:
        fold(events)
    assert caught.value.property == property


def test_well_formed_stream_is_folded() -> None:
    assert [block.text for block in fold([OPEN, TEXT, CLOSED])] == ["hi"]


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
            return [
                Delta(e.block, e.offset, e.text.upper()) if isinstance(e, Delta) else e
                for e in events
            ]
        if self._fault == "surrogate":
            return [
                Delta(e.block, e.offset, "\ud800" * len(e.text)) if isinstance(e, Delta) else e
                for e in events
            ]
        return events

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
    with pytest.raises(PropertyViolated) as caught:
        properties.check(Tampered("hermes", raw))
    assert caught.value.property == property


def test_exceptions_of_the_parser_are_propagated() -> None:
    with pytest.raises(RuntimeError):
        properties.check(Tampered("hermes", "raise it"))


@pytest.mark.parametrize(
    ("property", "texts", "check"),
    [
        ("prose is from the input, once and in order", ["b", "a"], properties.from_the_input),
        ("prose is from the input, once and in order", ["a b", "b"], properties.from_the_input),
        ("nothing is lost", ["a"], properties.accounted_for),
    ],
)
def test_invented_text_is_detected(
    property: str, texts: list[str], check: Callable[[Case, list[Block]], None]
) -> None:
    blocks = [Block("text", None, None, text, True) for text in texts]
    with pytest.raises(PropertyViolated) as caught:
        check(Case("hermes", "a b"), blocks)
    assert caught.value.property == property


def test_call_without_callable_tools_is_detected() -> None:
    with pytest.raises(PropertyViolated):
        properties.without_calls(Case("hermes", "x"), [Block("tool_use", "f", None, "{}", True)])


def test_prefixes_of_json_are_recognized() -> None:
    assert all(is_object_prefix(DOCUMENT[:end]) for end in range(len(DOCUMENT) + 1))
    json.loads(DOCUMENT)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "[",
            "x",
            "{,",
            '{"a" 1',
            '{"a":01',
            '{"a":tru,',
            '{"a":1,}',
            '{"a":"\n"',
            '{"a":"\\x"',
            '{"a":1} x',
            '{"a":-}',
        ),
        *('{"a":1.}', '{"a":]', '{"a":[1,]', '{"a":1]', '{"a":"\\u12g', '{"a":{"b":1,,'),
    ],
)
def test_other_texts_are_not_prefixes_of_json(text: str) -> None:
    assert not is_object_prefix(text)


def test_cases_round_trip_through_vectors() -> None:
    data = encode(
        {
            "family": "glm47",
            "raw": "船 <tool_call>",
            "tools": [{}],
            "prompt_ends_in_reasoning": True,
            "finish_reason": "length",
        }
    )
    case = decode(data)
    assert (case.family, case.raw, case.in_reasoning, case.reason) == (
        "glm47",
        "船 <tool_call>",
        True,
        FinishReason.LENGTH,
    )
    again = from_vector(to_vector(case))
    assert (again.raw, again.family, again.in_reasoning, again.reason) == (
        case.raw,
        "glm47",
        True,
        FinishReason.LENGTH,
    )
    assert decode(b"").raw == ""
    assert "".join(case.pieces()) == case.raw


def test_any_bytes_are_a_case_and_can_be_mutated() -> None:
    chance = Random(0)
    for _ in range(200):
        case = decode(mutate(chance.randbytes(chance.randrange(30)), chance))
        assert (case.prefix + case.raw).encode().decode() == case.prefix + case.raw


def test_failing_case_is_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(case: Case) -> None:
        if "<b>" in case.raw:
            raise PropertyViolated("no bold", case.raw)

    monkeypatch.setattr("fuzz.reduce.check", check)
    least = reduced(
        Case(
            "hermes",
            "some <b>bold</b> text",
            of_the_vectors(),
            in_reasoning=True,
            prefix="pre",
            seed=9,
        )
    )
    assert least.raw == "<b>"
    assert (least.tools, least.in_reasoning, least.prefix, least.seed) == ((), False, "", 0)


def test_generated_turn_with_other_blocks_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    case, segments = generated_turn(bytes([9, 0, 0, 1, 3]))
    monkeypatch.setattr(
        "fuzz.targets.stories.generated_turn",
        lambda data: (case, [*segments, ("text", "more", {})]),
    )
    with pytest.raises(PropertyViolated):
        stories.one(b"")


def test_every_target_has_a_corpus(tmp_path: Path) -> None:
    counts = seed(tmp_path)
    assert counts.keys() == TARGETS.keys()
    assert all(
        len(list((tmp_path / name).iterdir())) == count > 0 for name, count in counts.items()
    )
