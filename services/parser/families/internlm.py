r"""InternLM 2 and Intern-S1.

<|action_start|> <|plugin|>\n{"name": "run_shell", "parameters": {"cmd": "ls"}}<|action_end|>
"""

from services.parser.families.grammars import CHATML_STOPS, FRAMED_THINK, THINK, tagged_json
from services.parser.family import Family
from services.parser.writing import Style

FAMILY = Family(
    name="internlm",
    models="InternLM 2.5, InternLM 3, Intern-S1",
    tool_parsers=("internlm", "interns1", "intern-s1"),
    reasoning_parsers=("interns1",),
    grammar=tagged_json("<|action_start|>{ws}<|plugin|>", closer="<|action_end|>"),
    style=Style(
        call='<|action_start|> <|plugin|>\n{"name": "{name}", "parameters": {arguments}}<|action_end|>',
        reasoning=FRAMED_THINK,
    ),
    think=THINK,
    markers=("<|action_start|>", "<|plugin|>", "<|action_end|>", *THINK),
    stops=CHATML_STOPS,
    evidence=("<|action_start|>", "<|plugin|>"),
    model_types=("internlm2", "internlm3", "interns1"),
)
