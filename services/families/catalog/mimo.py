r"""MiMo.

    <think>Look first.</think><tool_call>\n<function=run_shell>\n<parameter=cmd>ls</parameter>\n</function>\n</tool_call>

Special: Qwen3-Coder's tags, but values stand inline and are exact to the last blank.
"""

from services.families.authoring import Style, Tags, function_tags
from services.families.catalog.qwen3_coder import FAMILY as QWEN3_CODER

FAMILY = QWEN3_CODER.variant(
    "mimo",
    "MiMo 7B, MiMo V2",
    grammar=function_tags(frame=False),
    style=Style(
        call="<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>",
        arguments=Tags("<parameter={key}>{value}</parameter>\n"),
    ),
    prompt_opens_reasoning=False,
    model_types=("mimo", "mimo_v2", "mimo_v2_flash"),
)
