r"""Hunyuan 4 (Hy4).

    Look first.</think><tool_calls><tool_call>run_shell<arg_key>cmd</arg_key><arg_value>ls</arg_value></tool_call></tool_calls>

Special: Hunyuan 3's section without `<tool_sep>` and line breaks.
"""

from services.families.authoring import Style, Tags, key_value_tags
from services.families.catalog.hy_v3 import FAMILY as HY_V3
from services.families.catalog.hy_v3 import STOPS, SUFFIXED_THINK

FAMILY = HY_V3.variant(
    "hy_v4",
    "Hunyuan 4",
    grammar=key_value_tags(
        section="tool_calls", suffix="{suffix}", think=(SUFFIXED_THINK,), stops=STOPS
    ),
    style=Style(
        call="<tool_calls><tool_call>{name}{arguments}</tool_call></tool_calls>",
        arguments=Tags("<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"),
    ),
    think=HY_V3.think,
    markers=("<tool_calls>", "</tool_calls>", "<tool_call>", "</tool_call>", "<think>", "</think>"),
    evidence=("<tool_calls>", "<tool_call>", "<arg_key>"),
    model_types=("hy_v4",),
)
