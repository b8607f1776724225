"""Raw completions: all that is generated is one text, as it is.

No family: nothing is told from a prompt or template, and no marker means anything. Special tokens are not shown, as in
vLLM and OpenAI's API; every blank is.
"""

from re import compile
from typing import Final

from services.parser.family import Family
from services.parser.tape import Reading
from services.parser.turn import Turn
from services.parser.writing import Style

_NOTHING: Final = compile(r"(?!)").search


def everything(turn: Turn) -> Reading[None]:
    """Passes all text on, blank or not."""
    tape, blocks = turn.tape, turn.blocks
    while not tape.final:
        if tape.position < len(tape.text):
            if blocks.kind is None:
                blocks.open("text", behind=len(tape.text) - tape.position)
            blocks.say(tape.rest())
            tape.position = len(tape.text)
            tape.trigger = _NOTHING
        yield


VERBATIM: Final = Family(name="verbatim", models="any, for raw completions", grammar=everything, style=Style())
