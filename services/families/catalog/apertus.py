r"""Apertus.

    <|inner_prefix|>Look first.<|inner_suffix|><|tools_prefix|>[{"run_shell": {"cmd": "ls"}}]<|tools_suffix|>

Special: a call is an object with the name as its only key.
"""

from services.families.authoring import Family, Form, Style, tagged_json

THINK = ("<|inner_prefix|>", "<|inner_suffix|>")
STOPS = ("<|assistant_end|>",)

FAMILY = Family(
    name="apertus",
    models="Apertus",
    tool_parsers=("apertus2509",),
    grammar=tagged_json(
        "<|tools_prefix|>", closer="<|tools_suffix|>", think=(THINK,), stops=STOPS, form=Form.KEYED
    ),
    style=Style(call='<|tools_prefix|>[{"{name}": {arguments}}]<|tools_suffix|>'),
    markers=("<|tools_prefix|>", "<|tools_suffix|>", *THINK),
    evidence=("<|tools_prefix|>", "<|tools_suffix|>"),
    model_types=("apertus",),
)
