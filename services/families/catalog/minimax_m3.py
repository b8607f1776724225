r"""MiniMax M3. NS stands for the token `]<]minimax[>[`.

    <mm:think>Look first.</mm:think>NS<tool_call>\nNS<invoke name="run_shell">NS<cmd>lsNS</cmd>NS</invoke>\nNS</tool_call>

Special: objects nest as tags, lists are `NS<item>`s, an empty container is an empty element; only
tags after the token are structure. Deployed models swallow the opener of the first parameter
(`…"run_shell">cmd>ls`).
"""

from services.families.authoring import (
    CallMarker,
    Family,
    Markup,
    Nested,
    NestedStyle,
    Shape,
    Style,
)

NS = "]<]minimax[>["
THINK = ("<mm:think>", "</mm:think>")
FRONTS = ((NS + "<tool_call>{ws}", NS + "<tool_call>"), ("", NS + "<invoke name="))
INVOKE = NS + "<invoke name={q}{name}{q}>"
ARGUMENTS = Nested(NS, next_markers=("</tool_call>", "<tool_call>", "<invoke name="))

FAMILY = Family(
    name="minimax_m3",
    models="MiniMax M3",
    tool_parsers=("minimax-m3", "minimax_m3_nom", "minimax-m3-nom"),
    reasoning_parsers=("minimax-m3",),
    grammar=Markup(
        think=(THINK,),
        calls=(
            *(
                CallMarker(Shape(front + INVOKE, then=(NS,), marker=mark), ARGUMENTS)
                for front, mark in FRONTS
            ),
            *(
                CallMarker(Shape(front + INVOKE + "{ws}{bare}>", marker=mark), ARGUMENTS)
                for front, mark in FRONTS
            ),
        ),
        tails=(NS + "</tool_call>", NS + "</invoke>"),
        stops=("[e~[",),
    ),
    style=Style(
        call=f'{NS}<tool_call>\n{NS}<invoke name="{{name}}">{{arguments}}{NS}</invoke>\n{NS}</tool_call>',
        arguments=NestedStyle(NS),
    ),
    prompt_opens_reasoning=True,
    markers=(NS, *THINK),
    evidence=(NS,),
    model_types=("minimax_m3",),
)
