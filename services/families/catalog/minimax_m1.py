r"""MiniMax M1.

    <think>\nLook first.\n</think>\n\n<tool_calls>\n{"name": "run_shell", "arguments": {"cmd": "ls"}}\n{"name": …}\n</tool_calls>

Special: one object a line.
"""

from services.families.authoring import FRAMED_THINK, THINK, Family, Form, Style, tagged_json

FAMILY = Family(
    name="minimax_m1",
    models="MiniMax M1",
    tool_parsers=("minimax-m1",),
    grammar=tagged_json(
        "<tool_calls>", closer="</tool_calls>", stops=("<end_of_sentence>",), form=Form.LINES
    ),
    style=Style(
        call='<tool_calls>\n{"name": "{name}", "arguments": {arguments}}\n</tool_calls>',
        reasoning=FRAMED_THINK,
    ),
    markers=THINK,
    evidence=("<tool_calls>", "<beginning_of_sentence>"),
    model_types=("minimax_m1",),
)
