r"""Kimi thinking (old): reasoning, no tools.

◁think▷Look first.◁/think▷Done.
"""

from services.families.authoring import CHATML_STOPS, Family, Markup, Style

THINK = ("◁think▷", "◁/think▷")

FAMILY = Family(
    name="kimi_thinking",
    models="Kimi-VL Thinking",
    reasoning_parsers=("kimi",),
    grammar=Markup(think=(THINK,), stops=CHATML_STOPS),
    style=Style(),
    markers=THINK,
    evidence=THINK,
)
