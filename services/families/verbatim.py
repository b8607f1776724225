"""The parser of raw completions: all output is one text block, and markers have no meaning.

Special tokens are left out, as in vLLM and OpenAI's API; white space is kept.
"""

from re import compile
from typing import Final

from services.families.family import Family
from services.families.grammar.scanner import Reader
from services.families.grammar.turn import TurnState
from services.families.writing import Style

_NOTHING: Final = compile(r"(?!)").search


def everything(turn: TurnState) -> Reader[None]:
    """Writes all text, including blanks at either end."""
    scanner = turn.scanner
    blocks = turn.blocks
    while not scanner.final:
        if scanner.position < len(scanner.text):
            if blocks.kind is None:
                blocks.open("text", behind=len(scanner.text) - scanner.position)
            blocks.write(scanner.rest())
            scanner.position = len(scanner.text)
            scanner.trigger = _NOTHING
        yield


VERBATIM: Final = Family(
    name="verbatim", models="any, for raw completions", grammar=everything, style=Style()
)
