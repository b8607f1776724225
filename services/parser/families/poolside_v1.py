r"""Laguna (poolside).

    Look first.</think><tool_call>run_shell\n<arg_key>cmd</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>

Special: GLM-4.5's layout; the prompt ends in `<think>` or `</think>`.
"""

from services.parser.families.glm45 import FAMILY as GLM45
from services.parser.families.grammars import BARE_THINK, THINK, key_value_tags
from services.parser.family import Family
from services.parser.writing import Style

STOPS = ("<|im_end|>", "<|endoftext|>", "</assistant>")

FAMILY = Family(
    name="poolside_v1",
    models="Laguna",
    tool_parsers=("poolside_v1",),
    reasoning_parsers=("poolside_v1", "laguna"),
    grammar=key_value_tags(stops=STOPS),
    style=Style(call=GLM45.style.call, arguments=GLM45.style.arguments, reasoning=BARE_THINK),
    think=THINK,
    prompt_opens_reasoning=True,
    markers=GLM45.markers,
    stops=STOPS,
    evidence=GLM45.evidence,
    model_types=("laguna",),
)
