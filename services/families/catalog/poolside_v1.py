r"""Laguna (poolside).

    Look first.</think><tool_call>run_shell\n<arg_key>cmd</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>

Special: GLM-4.5's layout; the prompt ends in `<think>` or `</think>`.
"""

from dataclasses import replace

from services.families.authoring import key_value_tags
from services.families.catalog.glm45 import FAMILY as GLM45

FAMILY = GLM45.variant(
    "poolside_v1",
    "Laguna",
    reasoning_parsers=("laguna",),
    grammar=key_value_tags(stops=("<|im_end|>", "<|endoftext|>", "</assistant>")),
    style=replace(GLM45.style, reasoning=""),
    prompt_opens_reasoning=True,
    model_types=("laguna",),
)
