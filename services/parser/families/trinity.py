r"""Trinity (Arcee).

    Look first.\n</think>\n\n<tool_call>\n{"name": "run_shell", "arguments": {"cmd": "ls"}}\n</tool_call>

Special: Hermes; calls may stand inside the reasoning, which they end.
"""

from services.parser.families.grammars import CHATML_STOPS, THINK, tagged_json
from services.parser.families.hermes import STYLE
from services.parser.family import Family

FAMILY = Family(
    name="trinity",
    models="Trinity",
    tool_parsers=("trinity",),
    grammar=tagged_json("<tool_call>", closer="</tool_call>"),
    style=STYLE,
    think=THINK,
    prompt_opens_reasoning=True,
    markers=("<tool_call>", "</tool_call>", *THINK),
    stops=CHATML_STOPS,
    evidence=("<tool_call>", '"name"', '"arguments"'),
    model_types=("afmoe",),
)
