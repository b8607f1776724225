r"""GLM-4.7 and 5.

    Look first.</think><tool_call>run_shell<arg_key>cmd</arg_key><arg_value>ls</arg_value></tool_call>

Special: GLM-4.5's tags without line breaks (both are read); no arguments is `<tool_call>NAME</tool_call>`. The prompt
ends in `<think>` or `</think>`, and reasoning opens again after calls.
"""

from services.parser.families.grammars import BARE_THINK, GLM_STOPS, THINK, key_value_tags
from services.parser.family import Family
from services.parser.writing import Style, Tags

FAMILY = Family(
    name="glm47",
    models="GLM-4.7, GLM-5, 5.1, 5.2, 5.3",
    tool_parsers=("glm47",),
    reasoning_parsers=("glm47",),
    grammar=key_value_tags(),
    style=Style(
        call="<tool_call>{name}{arguments}</tool_call>",
        arguments=Tags("<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"),
        reasoning=BARE_THINK,
    ),
    think=THINK,
    prompt_opens_reasoning=True,
    markers=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", *THINK),
    stops=GLM_STOPS,
    evidence=("<tool_call>", "<arg_key>", "<arg_value>"),
    model_types=("glm4_moe_lite", "glm_moe_dsa"),
)
