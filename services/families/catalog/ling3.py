r"""Ling and Ring 3.

    Look first.</think><tool_call>run_shell<arg_key>cmd</arg_key><arg_value>ls</arg_value></tool_call>

Special: GLM's tags, with or without line breaks.
"""

from services.families.authoring import CHATML_STOPS, key_value_tags
from services.families.catalog.glm47 import FAMILY as GLM47

FAMILY = GLM47.variant(
    "ling3",
    "Ling 3, Ring 3",
    grammar=key_value_tags(stops=("<|role_end|>", *CHATML_STOPS)),
    model_types=("bailing_moe_v3",),
)
