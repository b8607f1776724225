r"""HyperCLOVA X SEED Think.

    Look first.</think>\n\n<tool_call>run_shell\n<arg_key>cmd</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>

Special: GLM-4.5's calls in ChatML; the prompt opens or closes the reasoning.
"""

from services.families.authoring import CHATML_STOPS, Style, key_value_tags
from services.families.catalog.glm45 import FAMILY as GLM45

FAMILY = GLM45.variant(
    "hyperclovax_seed_think",
    "HyperCLOVA X SEED Think",
    grammar=key_value_tags(stops=CHATML_STOPS),
    style=Style(GLM45.style.call, GLM45.style.arguments, reasoning="<think>\n{text}</think>\n\n"),
    prompt_opens_reasoning=True,
    model_types=("hyperclovax_vlm",),
)
