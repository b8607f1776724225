r"""Kimi thinking (old): reasoning, no tools.

◁think▷Look first.◁/think▷Done.
"""

from services.parser.families.grammars import CHATML_STOPS, thinking
from services.parser.family import Family
from services.parser.markup import Markup
from services.parser.writing import Style

THINK = ("◁think▷", "◁/think▷")

FAMILY = Family(
    name="kimi_thinking",
    models="Kimi-VL Thinking",
    reasoning_parsers=("kimi",),
    grammar=Markup(think=thinking([THINK]), stops=CHATML_STOPS),
    style=Style(reasoning="◁think▷{text}◁/think▷"),
    think=THINK,
    markers=THINK,
    stops=CHATML_STOPS,
    evidence=THINK,
)
