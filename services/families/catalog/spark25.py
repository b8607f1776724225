r"""Spark 2.5.

    <tool_call>run_shell\n<arg_key>cmd</arg_key><arg_value>ls</arg_value>\n</tool_call>

Special: GLM's tags, a line break after each pair.
"""

from services.families.authoring import CHATML_STOPS, Style, Tags, key_value_tags
from services.families.catalog.glm47 import FAMILY as GLM47

FAMILY = GLM47.variant(
    "spark25",
    "Spark 2.5, Spark 3",
    tool_parsers=("spark3",),
    grammar=key_value_tags(stops=CHATML_STOPS),
    style=Style(
        call="<tool_call>{name}\n{arguments}</tool_call>",
        arguments=Tags("<arg_key>{key}</arg_key><arg_value>{value}</arg_value>\n"),
    ),
    prompt_opens_reasoning=False,
)
