r"""Llama 4.

    <|python_start|>[run_shell(cmd='ls', timeout_s=5), ping()]<|python_end|>

Special: the markers are optional.
"""

from services.families.authoring import CallMarker, Family, Markup, Pythonic, Shape, Style
from services.families.catalog.pythonic import BARE, STYLE

START, END = "<|python_start|>", "<|python_end|>"
STOPS = ("<|eot|>", "<|eom|>", "<|end_of_text|>")

FAMILY = Family(
    name="llama4_pythonic",
    models="Llama 4",
    grammar=Markup(
        calls=(CallMarker(Shape(START, then=("[",)), Pythonic(START, (END,))), *BARE),
        tails=(END,),
        stops=STOPS,
    ),
    style=Style(call=START + STYLE.call + END, arguments=STYLE.arguments),
    markers=(START, END),
    evidence=(START, END),
    model_types=("llama4", "llama4_text"),
)
