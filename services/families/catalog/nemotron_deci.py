r"""Llama-Nemotron Super and Ultra.

    <think>\nLook first.\n</think>\n\n<TOOLCALL>[{"name": "run_shell", "arguments": {"cmd": "ls"}}]</TOOLCALL>

Special: the model opens its reasoning itself; a single object may come without a list.
"""

from services.families.authoring import FRAMED_THINK, Family, Form, Style, tagged_json

FAMILY = Family(
    name="nemotron_deci",
    models="Llama-Nemotron Super, Ultra",
    tool_parsers=("nemotron_json",),
    grammar=tagged_json("<TOOLCALL>", closer="</TOOLCALL>", stops=("<|eot_id|>",), form=Form.LIST),
    style=Style(
        call='<TOOLCALL>[{"name": "{name}", "arguments": {arguments}}]</TOOLCALL>',
        reasoning=FRAMED_THINK,
    ),
    evidence=("<TOOLCALL>",),
    model_types=("nemotron-nas",),
)
