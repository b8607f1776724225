r"""Nemotron 3 Nano, Super and Ultra.

    Look first.\n</think>\n\n<tool_call>\n<function=run_shell>\n<parameter=cmd>\nls\n</parameter>\n</function>\n</tool_call>

Special: Qwen3-Coder's grammar; thinking is on unless the prompt ends in `<think></think>`.
"""

from services.parser.families.grammars import CHATML_STOPS, THINK, function_tags
from services.parser.families.qwen3_coder import STYLE
from services.parser.family import Family

FAMILY = Family(
    name="nemotron_v3",
    models="Nemotron 3 Nano, Super, Ultra",
    tool_parsers=("nemotron_v3", "nemotron-v3"),
    reasoning_parsers=("nemotron3", "nemotron_3", "nano-v3"),
    grammar=function_tags(frame=True),
    style=STYLE,
    think=THINK,
    prompt_opens_reasoning=True,
    markers=("<tool_call>", "</tool_call>", "<think>", "</think>"),
    stops=CHATML_STOPS,
    evidence=("<tool_call>", "<function=", "<parameter="),
    model_types=("nemotron_h",),
)
