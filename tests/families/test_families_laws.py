"""The laws, over whatever a model may write: whole and broken markup, in any order."""

import json
import re

from fuzz.outputs import KNOWN, any_case, pieces
from fuzz.properties import check
from schemas.events import Delta, FinishReason
from services.families import families, open_parser
from services.families.response_template import template_name
from tests.kit.every import for_each
from tests.kit.examples import chances
from tests.kit.parser_cases import tools
from tests.kit.response_templates import OWN

TOOLS = tools({"tools": KNOWN})
DESCRIBED = {template_name(json.dumps(source)): f"described {key}" for key, source in OWN.items()}
NAMES = [*families(), *DESCRIBED]


def shown(name: str) -> str:
    return DESCRIBED.get(name, name)


@for_each(NAMES, name=shown, parts=10)
def test_every_property_holds_for_any_output(name: str) -> None:
    """The properties that `fuzz/README.md` lists."""
    for chance in chances(name, 40):
        case = any_case(name, chance)
        try:
            check(case)
        except Exception as error:
            error.add_note(json.dumps(case))
            raise


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
    for chance in chances(name, 12):
        parser = open_parser(name, tools=TOOLS, in_reasoning=False)
        for piece in chance.choices(pieces(name), k=chance.randint(0, 25)):
            for char in piece:
                parser.feed(char)
            assert len(parser.scanner.rest()) < 1000, (piece, parser.scanner.rest())
