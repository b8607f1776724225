r"""Nemotron 3 Nano, Super and Ultra.

    Look first.\n</think>\n\n<tool_call>\n<function=run_shell>\n<parameter=cmd>\nls\n</parameter>\n</function>\n</tool_call>

Special: Qwen3-Coder's grammar; thinking is on unless the prompt ends in `<think></think>`.
"""

from services.families.catalog.qwen3_coder import FAMILY as QWEN3_CODER

FAMILY = QWEN3_CODER.variant(
    "nemotron_v3",
    "Nemotron 3 Nano, Super, Ultra",
    tool_parsers=("nemotron-v3",),
    reasoning_parsers=("nemotron3", "nemotron_3", "nano-v3"),
    model_types=("nemotron_h",),
)
