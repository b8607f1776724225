r"""ERNIE 4.5 Thinking.

    Look first.\n</think>\n\n\n<response>\nDone.\n</response>   or   </think>\n\n<tool_call>\n{"name": …, "arguments": …}\n</tool_call>

Special: text stands in `<response>`; Hermes' calls; the prompt opens reasoning.
"""

from dataclasses import replace

from services.families.authoring import THINK, Family, Style, tagged_json

STOPS = ("</s>", "<|im_end|>", "<|end_of_sentence|>")

FAMILY = Family(
    name="ernie45",
    models="ERNIE 4.5",
    grammar=replace(
        tagged_json("<tool_call>", closer="</tool_call>", stops=STOPS),
        frames=(("<response>", "</response>"),),
    ),
    style=Style(
        call='<tool_call>\n{"name": "{name}", "arguments": {arguments}}\n</tool_call>\n',
        text="\n<response>\n{text}\n</response>\n",
        reasoning="<think>\n{text}\n</think>\n",
    ),
    prompt_opens_reasoning=True,
    markers=("<tool_call>", "</tool_call>", "<response>", "</response>", *THINK),
    evidence=("<tool_call>", '"name"', '"arguments"', "<response>"),
    model_types=("ernie4_5", "ernie4_5_moe"),
)
