r"""Hermes, Qwen2.5, Qwen3 (JSON calls), QwQ.

    <think>\nLook first.\n</think>\n\n<tool_call>\n{"name": "run_shell", "arguments": {"cmd": "ls"}}\n</tool_call>

Special: arguments may be missing, or be a string that holds the object. A closer inside a JSON
string is payload.
"""

from services.families.authoring import FRAMED_THINK, Family, Style, tagged_json

FAMILY = Family(
    name="hermes",
    models="Hermes 2 and 3, Qwen2.5, Qwen3, QwQ, EXAONE 4",
    tool_parsers=("qwen", "qwen25", "qwen3", "qwen3_json", "exaone4"),
    grammar=tagged_json("<tool_call>", closer="</tool_call>"),
    style=Style(
        call='<tool_call>\n{"name": "{name}", "arguments": {arguments}}\n</tool_call>',
        reasoning=FRAMED_THINK,
    ),
    markers=("<tool_call>", "</tool_call>", "<think>", "</think>"),
    evidence=("<tool_call>", '"name"', '"arguments"'),
)
