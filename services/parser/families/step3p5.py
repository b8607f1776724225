r"""Step 3.5 and 3.7.

    Look first.\n</think>\n<tool_call>\n<function=run_shell>\n<parameter=cmd>\nls\n</parameter>\n</function>\n</tool_call>

Special: Qwen3-Coder's grammar; the prompt always ends in `<think>\n`.
"""

from services.parser.families.grammars import CHATML_STOPS, THINK, function_tags
from services.parser.families.qwen3_coder import STYLE
from services.parser.family import Family

FAMILY = Family(
    name="step3p5",
    models="Step 3.5, Step 3.7",
    tool_parsers=("step3p5",),
    reasoning_parsers=("step3p5",),
    grammar=function_tags(frame=True),
    style=STYLE,
    think=THINK,
    prompt_opens_reasoning=True,
    markers=("<tool_call>", "</tool_call>", "<think>", "</think>"),
    stops=CHATML_STOPS,
    evidence=("<tool_call>", "<function=", "<parameter="),
    model_types=("step3p5",),
)
