r"""Jamba.

<tool_calls>[{"name": "run_shell", "arguments": {"cmd": "ls"}}]</tool_calls>
"""

from services.families.authoring import Family, Form, Style, tagged_json

STOPS = ("<|endoftext|>", "<|im_end|>", "<|eom|>")

FAMILY = Family(
    name="jamba",
    models="Jamba 1.5, 1.6",
    grammar=tagged_json(
        "<tool_calls>", closer="</tool_calls>", think=(), stops=STOPS, form=Form.LIST
    ),
    style=Style(call='<tool_calls>[{"name": "{name}", "arguments": {arguments}}]</tool_calls>'),
    markers=("<tool_calls>", "</tool_calls>"),
    evidence=("<tool_calls>[",),
    model_types=("jamba",),
)
