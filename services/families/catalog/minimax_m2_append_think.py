r"""MiniMax M2 with its reasoning left in the text: a mode for clients that do not support
reasoning.

    Look first.\n</think>\n\nDone.   is the text   <think>Look first.\n</think>\n\nDone.

Special: the opener that the prompt consumed is put back; nothing is reasoning.
"""

from dataclasses import replace

from services.families.authoring import invoke_tags
from services.families.catalog.minimax_m2 import FAMILY as MINIMAX_M2
from services.families.catalog.minimax_m2 import STOPS

FAMILY = MINIMAX_M2.variant(
    "minimax_m2_append_think",
    "MiniMax M2 (reasoning as text)",
    reasoning_parsers=("minimax_append_think", "minimax-append-think"),
    grammar=replace(
        invoke_tags(
            ("<minimax:tool_call>",), tails=("</minimax:tool_call>",), stops=STOPS, think=()
        ),
        consumed="<think>",
    ),
    think=MINIMAX_M2.think,
    evidence=(),
)
