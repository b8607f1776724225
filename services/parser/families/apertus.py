r"""Apertus.

    <|inner_prefix|>Look first.<|inner_suffix|><|tools_prefix|>[{"run_shell": {"cmd": "ls"}}]<|tools_suffix|>

Special: a call is an object whose only key is the name.
"""

from services.parser.families.grammars import tagged_json
from services.parser.family import Family
from services.parser.readers.calls import Form
from services.parser.writing import Style

THINK = ("<|inner_prefix|>", "<|inner_suffix|>")
STOPS = ("<|assistant_end|>",)

FAMILY = Family(
    name="apertus",
    models="Apertus",
    tool_parsers=("apertus", "apertus2509"),
    grammar=tagged_json("<|tools_prefix|>", closer="<|tools_suffix|>", think=(THINK,), stops=STOPS, form=Form.KEYED),
    style=Style(
        call='<|tools_prefix|>[{"{name}": {arguments}}]<|tools_suffix|>',
        reasoning="<|inner_prefix|>{text}<|inner_suffix|>",
    ),
    think=THINK,
    markers=("<|tools_prefix|>", "<|tools_suffix|>", *THINK),
    stops=STOPS,
    evidence=("<|tools_prefix|>", "<|tools_suffix|>"),
    model_types=("apertus",),
)
