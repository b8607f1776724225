r"""MiMo.

    <think>Look first.</think><tool_call>\n<function=run_shell>\n<parameter=cmd>ls</parameter>\n</function>\n</tool_call>

Special: Qwen3-Coder's tags, but values stand inline and are exact to the last blank.
"""

from services.parser.families.grammars import BARE_THINK, CHATML_STOPS, THINK, function_tags
from services.parser.family import Family
from services.parser.writing import Style, Tags

FAMILY = Family(
    name="mimo",
    models="MiMo 7B, MiMo V2",
    tool_parsers=("mimo",),
    reasoning_parsers=("mimo",),
    grammar=function_tags(frame=False),
    style=Style(
        call="<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>",
        arguments=Tags("<parameter={key}>{value}</parameter>\n"),
        reasoning=BARE_THINK,
    ),
    think=THINK,
    markers=("<tool_call>", "</tool_call>", "<think>", "</think>"),
    stops=CHATML_STOPS,
    evidence=("<tool_call>", "<function=", "<parameter="),
    model_types=("mimo", "mimo_v2", "mimo_v2_flash"),
)
