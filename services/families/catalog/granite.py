r"""Granite 3.

    <|tool_call|>[{"name": "run_shell", "arguments": {"cmd": "ls"}}]

Special: 3.1 writes `<tool_call>[…]`; nothing closes the list but its bracket. Reasoning stands
between two sentences.
"""

from services.families.authoring import Family, Form, Style, tagged_json

THINK = ("Here is my thought process:", "Here is my response:")
STOPS = ("<|end_of_text|>", "<|end_of_role|>")

FAMILY = Family(
    name="granite",
    models="Granite 3.0 to 3.3",
    grammar=tagged_json(
        "<|tool_call|>", "<tool_call>", closer="", think=(THINK,), stops=STOPS, form=Form.LIST
    ),
    style=Style(
        call='<|tool_call|>[{"name": "{name}", "arguments": {arguments}}]',
        reasoning=f"{THINK[0]}\n{{text}}\n{THINK[1]}\n",
    ),
    markers=("<|tool_call|>",),
    evidence=("<|tool_call|>",),
    model_types=("granite", "granitemoe"),
)
