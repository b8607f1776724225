r"""DeepSeek R1: reasoning, no tools.

    Look first.\n</think>\n\nDone.

Special: the prompt ends in `<think>\n`, or the model opens it.
"""

from services.families.authoring import DEEPSEEK_STOPS, FRAMED_THINK, THINK, Family, Markup, Style

FAMILY = Family(
    name="deepseek_r1",
    models="DeepSeek R1, and other models that think and have no calls",
    reasoning_parsers=("deepseek-r1", "basic", "holo2", "minicpmv"),
    grammar=Markup(think=(THINK,), stops=DEEPSEEK_STOPS),
    style=Style(reasoning=FRAMED_THINK),
    prompt_opens_reasoning=True,
    markers=THINK,
    evidence=THINK,
)
