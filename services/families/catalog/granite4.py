r"""Granite 4.

    <tool_call>\n{"name": "run_shell", "arguments": {"cmd": "ls"}}\n</tool_call>

Special: Hermes, without reasoning.
"""

from services.families.authoring import Family, Style, tagged_json

FAMILY = Family(
    name="granite4",
    models="Granite 4",
    grammar=tagged_json(
        "<tool_call>", closer="</tool_call>", think=(), stops=("<|end_of_text|>", "<|end_of_role|>")
    ),
    style=Style(call='<tool_call>\n{"name": "{name}", "arguments": {arguments}}\n</tool_call>'),
    markers=("<tool_call>", "</tool_call>"),
    evidence=("<tool_call>", '"name"', '"arguments"'),
    model_types=("granitemoehybrid",),
)
