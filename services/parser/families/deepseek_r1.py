r"""DeepSeek R1: reasoning, no tools.

    Look first.\n</think>\n\nDone.

Special: the prompt ends in `<think>\n`, or the model opens it.
"""

from services.parser.families.grammars import DEEPSEEK_STOPS, FRAMED_THINK, THINK, thinking
from services.parser.family import Family
from services.parser.markup import Markup
from services.parser.writing import Style

FAMILY = Family(
    name="deepseek_r1",
    models="DeepSeek R1, and other models that think and have no calls",
    reasoning_parsers=("deepseek_r1", "deepseek-r1", "basic", "holo2", "minicpmv"),
    grammar=Markup(think=thinking([THINK]), stops=DEEPSEEK_STOPS),
    style=Style(reasoning=FRAMED_THINK),
    think=THINK,
    prompt_opens_reasoning=True,
    markers=THINK,
    stops=DEEPSEEK_STOPS,
    evidence=THINK,
)
