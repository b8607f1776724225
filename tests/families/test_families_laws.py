"""The laws, over whatever a model may write: whole and broken markup, in any order, in any
pieces."""

import json
import random
import re
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.conversation import ToolSpec
from schemas.events import Delta, FinishReason
from services.families import families, open_parser
from services.families import family as find_family
from services.families.response_template import template_name
from tests.kit.every import for_each
from tests.kit.examples import examples
from tests.kit.parser_cases import CHUNKINGS, fold, run, vectors, words
from tests.kit.response_templates import OWN

TOOLS = [
    ToolSpec(
        "run",
        schema={
            "properties": {
                "cmd": {"type": "string"},
                "note": {"type": ["string", "null"]},
                "o": {"type": "object"},
            }
        },
    ),
    ToolSpec("ping", schema={"properties": {}}),
]
FILLER = [*" \n<{}[]\"\\',:()=", "text ", "name", "cmd", "12", "null", "é🚢"]
DESCRIBED = {template_name(json.dumps(source)): f"described {key}" for key, source in OWN.items()}
NAMES = [*families(), *DESCRIBED]
REASONS = [FinishReason.STOP, FinishReason.LENGTH, FinishReason.STOP_STRING]


def shown(name: str) -> str:
    return DESCRIBED.get(name, name)


def ingredients(name: str) -> list[str]:
    """What the family's output is made of: its vectors' words, its markers, its calls, and things
    that go wrong."""
    family = find_family(name)
    cases = vectors(name) if name in families() else []
    seen = {
        word
        for case in cases
        for word in words(case["raw"])
        if len(word) > 1 and not word.isalnum()
    }
    own = {
        family.style.write_call("run", {"cmd": "ls <b>"}),
        family.style.write_reasoning("hm"),
        family.style.call_prefix("run"),
        family.style.call_prefix(None),
    }
    return sorted(word for word in seen | own | {*family.markers, *family.stops} if word) + FILLER


@st.composite
def outputs(draw: st.DrawFn, name: str) -> str:
    """A generation: pieces in any order, or a vector with some of it replaced."""
    pieces = st.sampled_from(ingredients(name))
    cases = vectors(name)
    if not cases or draw(st.booleans()):
        return "".join(draw(st.lists(pieces, max_size=14)))
    raw: str = draw(st.sampled_from(cases))["raw"][:2000]
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(st.just("") | pieces) + raw[at + draw(st.integers(0, 12)) :]
    return raw


def cut(text: str, chance: random.Random) -> list[str]:
    pieces = []
    while text:
        size = chance.choice((1, 2, 3, 7, 20))
        pieces.append(text[:size])
        text = text[size:]
    return pieces


@for_each(NAMES, name=shown)
@settings(max_examples=examples(12), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_every_law_holds_for_any_output(name: str, data: st.DataObject) -> None:
    """Nothing raises, the stream is well-formed, the cuts do not matter, prose is the input's own,
    nothing is doubled."""
    raw = data.draw(outputs(name))
    reason = data.draw(st.sampled_from(REASONS))
    reasoning = data.draw(st.booleans())
    chance = data.draw(st.randoms(use_true_random=False))

    def blocks(pieces: list[str]) -> list[dict[str, Any]]:
        return fold(run(open_parser(name, tools=TOOLS, in_reasoning=reasoning), pieces, reason))

    whole = blocks([raw])
    for chunking in CHUNKINGS.values():
        assert blocks(list(chunking(raw))) == whole
    assert blocks(cut(raw, chance)) == whole
    rest = iter(("<think>" if name == "minimax_m2_append_think" else "") + raw)
    assert all(
        char in rest for block in whole if block["type"] != "tool_use" for char in block["text"]
    )


@for_each(NAMES, name=shown)
@settings(max_examples=examples(12))
@given(st.text(alphabet="ab .,é\n", max_size=60), st.booleans())
def test_plain_prose_passes_whole_and_at_once(name: str, text: str, reasoning: bool) -> None:
    """Character by character; only a line break and blanks after it wait, because they may precede
    a marker."""
    parser = open_parser(name, tools=TOOLS, in_reasoning=reasoning)
    parser.feed("So it is ")
    fed, shown = "So it is ", "So it is "
    for char in text:
        fed += char
        shown += "".join(event.text for event in parser.feed(char) if isinstance(event, Delta))
        assert shown == re.sub(r"[\r\n][ \t\r\n]*\Z", "", fed)
    assert not [event for event in parser.finish(FinishReason.STOP) if isinstance(event, Delta)]


@for_each(NAMES, name=shown)
@settings(max_examples=examples(12))
@given(st.data())
def test_held_back_text_is_bounded(name: str, data: st.DataObject) -> None:
    """No more input waits for its meaning than the longest opening marker, with its name, may be
    long."""
    parser = open_parser(name, tools=TOOLS, in_reasoning=False)
    for piece in data.draw(st.lists(st.sampled_from(ingredients(name)), max_size=60)):
        for char in piece:
            parser.feed(char)
            assert len(parser.scanner.rest()) < 1000
