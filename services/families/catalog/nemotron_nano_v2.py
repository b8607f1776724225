r"""Nemotron Nano 2.

    Look first.\n</think>\n\n<TOOLCALL>[{"name": "run_shell", "arguments": {"cmd": "ls"}}]</TOOLCALL>

Special: Llama-Nemotron's calls; the prompt ends in `<think>\n` or `<think></think>`.
"""

from services.families.authoring import Form, tagged_json
from services.families.catalog.nemotron_deci import FAMILY as NEMOTRON_DECI

FAMILY = NEMOTRON_DECI.variant(
    "nemotron_nano_v2",
    "Nemotron Nano 2",
    reasoning_parsers=("nemotron_nano",),
    grammar=tagged_json(
        "<TOOLCALL>", closer="</TOOLCALL>", stops=("<SPECIAL_12>",), form=Form.LIST
    ),
    prompt_opens_reasoning=True,
    evidence=("<TOOLCALL>", "<SPECIAL_"),
)
