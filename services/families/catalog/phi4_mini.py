r"""Phi-4 mini.

functools[{"name": "run_shell", "arguments": {"cmd": "ls"}}]   or   <|tool_call|>[…]<|/tool_call|>
"""

from services.families.authoring import Family, Form, Style, tagged_json

STOPS = ("<|end|>", "<|endoftext|>")

FAMILY = Family(
    name="phi4_mini",
    models="Phi-4 mini",
    tool_parsers=("phi4_mini_json", "phi4"),
    grammar=tagged_json(
        "functools", "<|tool_call|>", closer="<|/tool_call|>", think=(), stops=STOPS, form=Form.LIST
    ),
    style=Style(call='functools[{"name": "{name}", "arguments": {arguments}}]'),
    markers=("<|tool_call|>", "<|/tool_call|>"),
    evidence=("functools",),
    model_types=("phi3", "phi4mm"),
)
