r"""Llama 4.

    <|python_start|>[run_shell(cmd='ls', timeout_s=5), ping()]<|python_end|>

Special: the markers are optional.
"""

from services.parser.families.pythonic import BARE, STYLE
from services.parser.family import Family
from services.parser.markup import Call, Markup
from services.parser.readers.pythonic import Pythonic
from services.parser.shapes import Shape
from services.parser.writing import Style

START, END = "<|python_start|>", "<|python_end|>"
STOPS = ("<|eot|>", "<|eom|>", "<|end_of_text|>")

FAMILY = Family(
    name="llama4_pythonic",
    models="Llama 4",
    tool_parsers=("llama4_pythonic",),
    grammar=Markup(calls=(Call(Shape(START, then=("[",)), Pythonic(START, (END,))), *BARE), tails=(END,), stops=STOPS),
    style=Style(call=START + STYLE.call + END, arguments=STYLE.arguments),
    markers=(START, END),
    stops=STOPS,
    evidence=(START, END),
    model_types=("llama4", "llama4_text"),
)
