r"""Hunyuan A13B.

    <think>\nLook first.\n</think>\n<answer>\nDone.\n</answer>   or   </think>\n<tool_calls>[{"name": …, "arguments": …}]</tool_calls>

Special: text stands in `<answer>`.
"""

from dataclasses import replace

from services.families.authoring import Family, Form, Style, tagged_json

FAMILY = Family(
    name="hunyuan_a13b",
    models="Hunyuan A13B",
    grammar=replace(
        tagged_json(
            "<tool_calls>",
            closer="</tool_calls>",
            stops=("<|eos|>", "<|endoftext|>"),
            form=Form.LIST,
        ),
        frames=(("<answer>", "</answer>"),),
    ),
    style=Style(
        call='<tool_calls>[{"name": "{name}", "arguments": {arguments}}]</tool_calls>',
        text="<answer>\n{text}\n</answer>",
        reasoning="<think>\n{text}\n</think>\n",
    ),
    evidence=("<tool_calls>[", "<answer>"),
    model_types=("hunyuan_v1_moe",),
)
