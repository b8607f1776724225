r"""Ling and Ring 3.

    Look first.</think><tool_call>run_shell<arg_key>cmd</arg_key><arg_value>ls</arg_value></tool_call>

Special: GLM's tags, with or without line breaks.
"""

from services.parser.families.glm47 import FAMILY as GLM47
from services.parser.families.grammars import CHATML_STOPS, THINK, key_value_tags
from services.parser.family import Family

STOPS = ("<|role_end|>", *CHATML_STOPS)

FAMILY = Family(
    name="ling3",
    models="Ling 3, Ring 3",
    tool_parsers=("ling3",),
    reasoning_parsers=("ling3",),
    grammar=key_value_tags(stops=STOPS),
    style=GLM47.style,
    think=THINK,
    prompt_opens_reasoning=True,
    markers=GLM47.markers,
    stops=STOPS,
    evidence=("<tool_call>", "<arg_key>", "<arg_value>"),
    model_types=("bailing_moe_v3",),
)
