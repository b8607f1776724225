r"""Step 3.5 and 3.7.

    Look first.\n</think>\n<tool_call>\n<function=run_shell>\n<parameter=cmd>\nls\n</parameter>\n</function>\n</tool_call>

Special: Qwen3-Coder's grammar; the prompt always ends in `<think>\n`.
"""

from services.families.catalog.qwen3_coder import FAMILY as QWEN3_CODER

FAMILY = QWEN3_CODER.variant("step3p5", "Step 3.5, Step 3.7", model_types=("step3p5",))
