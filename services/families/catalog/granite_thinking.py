r"""Granite 4.2 with thinking.

    Look first.\n</think>\n<tool_call>\n<function=run_shell>\n<parameter=cmd>\nls\n</parameter>\n</function>\n</tool_call>

Special: Qwen3-Coder's grammar; text begins with a line break that is framing.
"""

from services.families.authoring import function_tags
from services.families.catalog.qwen3_coder import FAMILY as QWEN3_CODER

FAMILY = QWEN3_CODER.variant(
    "granite_thinking",
    "Granite 4.2",
    reasoning_parsers=("granite_thinking_parser",),
    grammar=function_tags(frame=True, stops=("<|end_of_text|>", "<|im_end|>", "<|endoftext|>")),
)
