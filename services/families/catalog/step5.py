r"""Step 5.

    Look first.\n</think>\n<tool_call>\n<function=run_shell>\n<parameter=cmd>\nls\n</parameter>\n</function>\n</tool_call>

Special: Qwen3-Coder's grammar; the prompt ends in `<think>\n`.
"""

from services.families.catalog.qwen3_coder import FAMILY as QWEN3_CODER

FAMILY = QWEN3_CODER.variant("step5", "Step 5", model_types=("step5",))
