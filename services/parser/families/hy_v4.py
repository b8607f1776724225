r"""Hunyuan 4 (Hy4).

    Look first.</think><tool_calls><tool_call>run_shell<arg_key>cmd</arg_key><arg_value>ls</arg_value></tool_call></tool_calls>

Special: Hunyuan 3's section without `<tool_sep>` and line breaks.
"""

from services.parser.families.grammars import BARE_THINK, key_value_tags
from services.parser.families.hy_v3 import STOPS
from services.parser.family import Family
from services.parser.writing import Style, Tags

FAMILY = Family(
    name="hy_v4",
    models="Hunyuan 4",
    tool_parsers=("hy_v4",),
    reasoning_parsers=("hy_v4",),
    grammar=key_value_tags(
        section="tool_calls",
        suffix="{suffix}",
        think=(("<think{suffix}>", "</think{suffix}>"),),
        stops=STOPS,
    ),
    style=Style(
        call="<tool_calls><tool_call>{name}{arguments}</tool_call></tool_calls>",
        arguments=Tags("<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"),
        reasoning=BARE_THINK,
    ),
    think=("<think>", "</think>"),
    prompt_opens_reasoning=True,
    markers=("<tool_calls>", "</tool_calls>", "<tool_call>", "</tool_call>", "<think>", "</think>"),
    stops=STOPS,
    evidence=("<tool_calls>", "<tool_call>", "<arg_key>"),
    model_types=("hy_v4",),
)
