r"""MiniMax M2 to M2.7.

    Look first.\n</think>\n\n<minimax:tool_call>\n<invoke name="run_shell">\n<parameter name="cmd">ls</parameter>\n</invoke>\n</minimax:tool_call>

Special: values are exact, types the schema's. The prompt always ends in `<think>\n`.
"""

from services.parser.families.grammars import FRAMED_THINK, THINK, invoke_tags
from services.parser.family import Family
from services.parser.writing import Style, Tags

STOPS = ("[e~[",)
STYLE = Style(
    call='<minimax:tool_call>\n<invoke name="{name}">\n{arguments}</invoke>\n</minimax:tool_call>',
    arguments=Tags('<parameter name="{key}">{value}</parameter>\n'),
    reasoning=FRAMED_THINK,
)

FAMILY = Family(
    name="minimax_m2",
    models="MiniMax M2, M2.1, M2.5, M2.7",
    tool_parsers=("minimax_m2", "minimax-m2"),
    reasoning_parsers=("minimax_m2", "minimax"),
    grammar=invoke_tags(("<minimax:tool_call>",), tails=("</minimax:tool_call>",), stops=STOPS),
    style=STYLE,
    think=THINK,
    prompt_opens_reasoning=True,
    markers=("<minimax:tool_call>", "</minimax:tool_call>", *THINK),
    stops=STOPS,
    evidence=("<minimax:tool_call>", "<invoke name="),
    model_types=("minimax", "minimax_m2"),
)
