r"""GLM-4.5 and 4.6.

    \n<think>Look first.</think>\n<tool_call>run_shell\n<arg_key>cmd</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>

Special: values are exact, types are the schema's. A name is final only at its first key or the
closer. Under load the model leaves `<arg_value>` out.
"""

from services.families.authoring import THINK, Family, Style, Tags, key_value_tags

FAMILY = Family(
    name="glm45",
    models="GLM-4.5, GLM-4.6",
    tool_parsers=("glm", "glm4"),
    grammar=key_value_tags(),
    style=Style(
        call="<tool_call>{name}\n{arguments}</tool_call>",
        arguments=Tags("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"),
        reasoning="\n<think>{text}</think>\n",
    ),
    markers=(
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        *THINK,
    ),
    evidence=("<tool_call>", "<arg_key>", "<arg_value>", "</arg_key>\n"),
)
