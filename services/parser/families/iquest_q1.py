r"""IQuest Q1.

    Look first.</think><iquest_tool_call>run_shell<arg_key>cmd</arg_key><arg_value>ls</arg_value></iquest_tool_call>

Special: GLM-4.7's grammar in a wrapper of its own.
"""

from services.parser.families.grammars import BARE_THINK, CHATML_STOPS, THINK, key_value_tags
from services.parser.family import Family
from services.parser.writing import Style, Tags

FAMILY = Family(
    name="iquest_q1",
    models="IQuest Q1",
    tool_parsers=("iquest_q1",),
    reasoning_parsers=("iquest_q1",),
    grammar=key_value_tags("iquest_tool_call", stops=CHATML_STOPS),
    style=Style(
        call="<iquest_tool_call>{name}{arguments}</iquest_tool_call>",
        arguments=Tags("<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"),
        reasoning=BARE_THINK,
    ),
    think=THINK,
    prompt_opens_reasoning=True,
    markers=("<iquest_tool_call>", "</iquest_tool_call>", *THINK),
    stops=CHATML_STOPS,
    evidence=("<iquest_tool_call>",),
)
