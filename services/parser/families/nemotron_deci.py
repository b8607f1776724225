r"""Llama-Nemotron Super and Ultra.

    <think>\nLook first.\n</think>\n\n<TOOLCALL>[{"name": "run_shell", "arguments": {"cmd": "ls"}}]</TOOLCALL>

Special: the model opens its reasoning itself; one object may stand there without a list.
"""

from services.parser.families.grammars import FRAMED_THINK, THINK, tagged_json
from services.parser.family import Family
from services.parser.readers.calls import Form
from services.parser.writing import Style

STOPS = ("<|eot_id|>",)
STYLE = Style(
    call='<TOOLCALL>[{"name": "{name}", "arguments": {arguments}}]</TOOLCALL>',
    reasoning=FRAMED_THINK,
)

FAMILY = Family(
    name="nemotron_deci",
    models="Llama-Nemotron Super, Ultra",
    tool_parsers=("nemotron_deci",),
    reasoning_parsers=("nemotron_deci",),
    grammar=tagged_json("<TOOLCALL>", closer="</TOOLCALL>", stops=STOPS, form=Form.LIST),
    style=STYLE,
    think=THINK,
    stops=STOPS,
    evidence=("<TOOLCALL>",),
    model_types=("nemotron-nas",),
)
