r"""IQuest Q1.

    Look first.</think><iquest_tool_call>run_shell<arg_key>cmd</arg_key><arg_value>ls</arg_value></iquest_tool_call>

Special: GLM-4.7's grammar in a wrapper of its own.
"""

from dataclasses import replace

from services.families.authoring import CHATML_STOPS, THINK, key_value_tags
from services.families.catalog.glm47 import FAMILY as GLM47

FAMILY = GLM47.variant(
    "iquest_q1",
    "IQuest Q1",
    grammar=key_value_tags("iquest_tool_call", stops=CHATML_STOPS),
    style=replace(GLM47.style, call="<iquest_tool_call>{name}{arguments}</iquest_tool_call>"),
    markers=("<iquest_tool_call>", "</iquest_tool_call>", *THINK),
    evidence=("<iquest_tool_call>",),
)
