r"""GLM-4.5 and 4.6.

    \n<think>Look first.</think>\n<tool_call>run_shell\n<arg_key>cmd</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>

Special: values are exact, types are the schema's. A name is final only at its first key or the closer. Under load the
model leaves `<arg_value>` out.
"""

from services.parser.families.grammars import GLM_STOPS, THINK, key_value_tags
from services.parser.family import Family
from services.parser.writing import Style, Tags

FAMILY = Family(
    name="glm45",
    models="GLM-4.5, GLM-4.6",
    tool_parsers=("glm45", "glm", "glm4"),
    reasoning_parsers=("glm45",),
    grammar=key_value_tags(),
    style=Style(
        call="<tool_call>{name}\n{arguments}</tool_call>",
        arguments=Tags("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"),
        reasoning="\n<think>{text}</think>\n",
    ),
    think=THINK,
    markers=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", *THINK),
    stops=GLM_STOPS,
    evidence=("<tool_call>", "<arg_key>", "<arg_value>", "</arg_key>\n"),
)
