r"""Spark 2.5.

    <tool_call>run_shell\n<arg_key>cmd</arg_key><arg_value>ls</arg_value>\n</tool_call>

Special: GLM's tags, a line break after each pair.
"""

from services.parser.families.glm45 import FAMILY as GLM45
from services.parser.families.grammars import BARE_THINK, CHATML_STOPS, THINK, key_value_tags
from services.parser.family import Family
from services.parser.writing import Style, Tags

FAMILY = Family(
    name="spark25",
    models="Spark 2.5",
    tool_parsers=("spark25",),
    grammar=key_value_tags(stops=CHATML_STOPS),
    style=Style(
        call="<tool_call>{name}\n{arguments}</tool_call>",
        arguments=Tags("<arg_key>{key}</arg_key><arg_value>{value}</arg_value>\n"),
        reasoning=BARE_THINK,
    ),
    think=THINK,
    markers=GLM45.markers,
    stops=CHATML_STOPS,
    evidence=("<tool_call>", "<arg_key>", "<arg_value>"),
)
