r"""GLM-4.7 and 5.

    Look first.</think><tool_call>run_shell<arg_key>cmd</arg_key><arg_value>ls</arg_value></tool_call>

Special: GLM-4.5's tags without line breaks (both are read); a call without arguments is
`<tool_call>NAME</tool_call>`. The prompt ends in `<think>` or `</think>`, and reasoning opens again
after calls.
"""

from services.families.authoring import Style, Tags
from services.families.catalog.glm45 import FAMILY as GLM45

FAMILY = GLM45.variant(
    "glm47",
    "GLM-4.7, GLM-5, 5.1, 5.2, 5.3, 5.3-Flash",
    style=Style(
        call="<tool_call>{name}{arguments}</tool_call>",
        arguments=Tags("<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"),
    ),
    prompt_opens_reasoning=True,
    evidence=("<tool_call>", "<arg_key>", "<arg_value>"),
    model_types=("glm4_moe_lite", "glm_moe_dsa"),
)
