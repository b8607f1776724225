r"""DeepSeek V3.1.

    Look first.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>run_shell<｜tool▁sep｜>{"cmd": "ls"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

Special: V3's markers without fence and type; the prompt ends in `<think>` or `</think>`.
"""

from services.families.authoring import Style
from services.families.catalog.deepseek_v3 import CALL, END, SECTION, SECTION_END, grammar
from services.families.catalog.deepseek_v3 import FAMILY as DEEPSEEK_V3

FAMILY = DEEPSEEK_V3.variant(
    "deepseek_v31",
    "DeepSeek V3.1",
    tool_parsers=("deepseekv31", "deepseek_v3_1"),
    reasoning_parsers=("deepseek-v3", "deepseek_v3_1"),
    grammar=grammar("{name}<｜tool▁sep｜>", ("{", '"', "null", END), (END,)),
    style=Style(call=SECTION + CALL + "{name}<｜tool▁sep｜>{arguments}" + END + SECTION_END),
    evidence=("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),
)
