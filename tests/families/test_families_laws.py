"""The laws, over whatever a model may write: whole and broken markup, in any order."""

import json
import random
import re

from schemas.conversation import ToolSpec
from schemas.events import Delta, FinishReason
from services.families import families, find_family, open_parser
from services.families.response_template import template_name
from tests.kit.every import for_each
from tests.kit.examples import chances
from tests.kit.parser_cases import any_cut, fold, run, vectors, words
from tests.kit.response_templates import OWN

PROPERTIES = {
    "cmd": {"type": "string"},
    "note": {"type": ["string", "null"]},
    "o": {"type": "object"},
}
TOOLS = [
    ToolSpec("run", schema={"properties": PROPERTIES}),
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
    spelled = {word for case in cases for word in words(case["raw"])}
    seen = {word for word in spelled if len(word) > 1 and not word.isalnum()}
    own = {
        family.style.write_call("run", {"cmd": "ls <b>"}),
        family.style.write_reasoning("hm"),
        family.style.call_prefix("run"),
        family.style.call_prefix(None),
    }
    return sorted(word for word in seen | own | {*family.markers, *family.stops} if word) + FILLER


def any_output(name: str, pieces: list[str], chance: random.Random) -> str:
    """A generation: pieces in any order, or a vector with some of it replaced."""
    cases = vectors(name)
    if not cases or chance.random() < 0.5:
        return "".join(chance.choices(pieces, k=chance.randint(0, 14)))
    raw: str = chance.choice(cases)["raw"][:2000]
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(raw))
        new = chance.choice(("", chance.choice(pieces)))
        raw = raw[:at] + new + raw[at + chance.randint(0, 12) :]
    return raw


@for_each(NAMES, name=shown)
def test_every_law_holds_for_any_output(name: str) -> None:
    """Nothing raises, the stream is well-formed, the cuts do not matter, prose is the input's own,
    nothing is doubled."""
    pieces = ingredients(name)
    for chance in chances(name, 12):
        raw, reason = any_output(name, pieces, chance), chance.choice(REASONS)
        reasoning = chance.random() < 0.5
        whole, characters, other = (
            fold(run(open_parser(name, tools=TOOLS, in_reasoning=reasoning), cut, reason))
            for cut in ([raw], raw, any_cut(raw))
        )
        assert whole == characters == other, (raw, reason, reasoning)
        rest = iter(("<think>" if name == "minimax_m2_append_think" else "") + raw)
        prose = "".join(block["text"] for block in whole if block["type"] != "tool_use")
        assert all(char in rest for char in prose), (raw, whole)


@for_each(NAMES, name=shown)
def test_plain_prose_passes_whole_and_at_once(name: str) -> None:
    """Character by character; only a line break and blanks after it wait, because they may precede
    a marker."""
    for chance in chances(name, 12):
        parser = open_parser(name, tools=TOOLS, in_reasoning=chance.random() < 0.5)
        fed = shown = "So it is "
        parser.feed(fed)
        for char in chance.choices("ab .,é\n", k=chance.randint(0, 30)):
            fed += char
            shown += "".join(event.text for event in parser.feed(char) if isinstance(event, Delta))
            assert shown == re.sub(r"[\r\n][ \t\r\n]*\Z", "", fed)
        assert not [event for event in parser.finish(FinishReason.STOP) if isinstance(event, Delta)]


@for_each(NAMES, name=shown)
def test_held_back_text_is_bounded(name: str) -> None:
    """No more input waits for its meaning than the longest opening marker, with its name, may be
    long."""
    pieces = ingredients(name)
    for chance in chances(name, 12):
        parser = open_parser(name, tools=TOOLS, in_reasoning=False)
        for piece in chance.choices(pieces, k=chance.randint(0, 25)):
            for char in piece:
                parser.feed(char)
            assert len(parser.scanner.rest()) < 1000, (piece, parser.scanner.rest())
