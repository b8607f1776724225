r"""Granite 4.2 with thinking.

    Look first.\n</think>\n<tool_call>\n<function=run_shell>\n<parameter=cmd>\nls\n</parameter>\n</function>\n</tool_call>

Special: Qwen3-Coder's grammar; text begins with a line break that is framing.
"""

from services.parser.families.grammars import THINK, function_tags
from services.parser.families.qwen3_coder import STYLE
from services.parser.family import Family

STOPS = ("<|end_of_text|>", "<|im_end|>", "<|endoftext|>")

FAMILY = Family(
    name="granite_thinking",
    models="Granite 4.2",
    reasoning_parsers=("granite_thinking_parser", "granite_thinking"),
    grammar=function_tags(frame=True, stops=STOPS),
    style=STYLE,
    think=THINK,
    prompt_opens_reasoning=True,
    markers=("<tool_call>", "</tool_call>", "<think>", "</think>"),
    stops=STOPS,
    evidence=("<tool_call>", "<function=", "<parameter="),
)
