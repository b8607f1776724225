r"""Nemotron Nano 2.

    Look first.\n</think>\n\n<TOOLCALL>[{"name": "run_shell", "arguments": {"cmd": "ls"}}]</TOOLCALL>

Special: Llama-Nemotron's calls; the prompt ends in `<think>\n` or `<think></think>`.
"""

from services.parser.families.grammars import THINK, tagged_json
from services.parser.families.nemotron_deci import STYLE
from services.parser.family import Family
from services.parser.readers.calls import Form

STOPS = ("<SPECIAL_12>",)

FAMILY = Family(
    name="nemotron_nano_v2",
    models="Nemotron Nano 2",
    reasoning_parsers=("nemotron_nano",),
    grammar=tagged_json("<TOOLCALL>", closer="</TOOLCALL>", stops=STOPS, form=Form.LIST),
    style=STYLE,
    think=THINK,
    prompt_opens_reasoning=True,
    stops=STOPS,
    evidence=("<TOOLCALL>", "<SPECIAL_"),
)
