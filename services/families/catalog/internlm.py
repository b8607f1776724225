r"""InternLM 2 and Intern-S1.

<|action_start|> <|plugin|>\n{"name": "run_shell", "parameters": {"cmd": "ls"}}<|action_end|>
"""

from services.families.authoring import FRAMED_THINK, THINK, Family, Style, tagged_json

FAMILY = Family(
    name="internlm",
    models="InternLM 2.5, InternLM 3, Intern-S1",
    tool_parsers=("interns1", "intern-s1"),
    reasoning_parsers=("interns1",),
    grammar=tagged_json("<|action_start|>{ws}<|plugin|>", closer="<|action_end|>"),
    style=Style(
        call='<|action_start|> <|plugin|>\n{"name": "{name}", "parameters": {arguments}}<|action_end|>',
        reasoning=FRAMED_THINK,
    ),
    markers=("<|action_start|>", "<|plugin|>", "<|action_end|>", *THINK),
    evidence=("<|action_start|>", "<|plugin|>"),
    model_types=("internlm2", "internlm3", "interns1"),
)
