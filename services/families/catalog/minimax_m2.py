r"""MiniMax M2 to M2.7.

    Look first.\n</think>\n\n<minimax:tool_call>\n<invoke name="run_shell">\n<parameter name="cmd">ls</parameter>\n</invoke>\n</minimax:tool_call>

Special: values are exact, types the schema's. The prompt always ends in `<think>\n`.
"""

from services.families.authoring import FRAMED_THINK, THINK, Family, Style, Tags, invoke_tags

STOPS = ("[e~[",)

FAMILY = Family(
    name="minimax_m2",
    models="MiniMax M2, M2.1, M2.5, M2.7",
    tool_parsers=("minimax-m2",),
    reasoning_parsers=("minimax",),
    grammar=invoke_tags(("<minimax:tool_call>",), tails=("</minimax:tool_call>",), stops=STOPS),
    style=Style(
        call='<minimax:tool_call>\n<invoke name="{name}">\n{arguments}</invoke>\n</minimax:tool_call>',
        arguments=Tags('<parameter name="{key}">{value}</parameter>\n'),
        reasoning=FRAMED_THINK,
    ),
    prompt_opens_reasoning=True,
    markers=("<minimax:tool_call>", "</minimax:tool_call>", *THINK),
    evidence=("<minimax:tool_call>", "<invoke name="),
    model_types=("minimax", "minimax_m2"),
)
