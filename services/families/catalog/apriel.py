r"""Apriel Thinker.

    Look first.\n[BEGIN FINAL RESPONSE]\n<tool_calls>[{"name": "run_shell", "arguments": {"cmd": "ls"}}]</tool_calls>

Special: Jamba's calls; reasoning is between two phrases, and the prompt ends in the first. 1.5
closes its answer with `[END FINAL RESPONSE]`.
"""

from services.families.authoring import Family, Form, Style, tagged_json

THINK = ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]")
END = "<|end|>"

FAMILY = Family(
    name="apriel",
    models="Apriel 1.5, 1.6 Thinker",
    grammar=tagged_json(
        "<tool_calls>",
        closer="</tool_calls>",
        think=(THINK,),
        stops=("[END FINAL RESPONSE]", END),
        form=Form.LIST,
    ),
    style=Style(
        call='<tool_calls>[{"name": "{name}", "arguments": {arguments}}]</tool_calls>',
        reasoning=f"{THINK[0]}\n{{text}}\n{THINK[1]}\n",
    ),
    prompt_opens_reasoning=True,
    markers=("<tool_calls>", "</tool_calls>"),
    stops=(END,),
    evidence=("<tool_calls>[", THINK[1]),
)
