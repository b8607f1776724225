r"""Trinity (Arcee).

    Look first.\n</think>\n\n<tool_call>\n{"name": "run_shell", "arguments": {"cmd": "ls"}}\n</tool_call>

Special: Hermes; calls may stand inside the reasoning, which they end.
"""

from services.families.catalog.hermes import FAMILY as HERMES

FAMILY = HERMES.variant("trinity", "Trinity", prompt_opens_reasoning=True, model_types=("afmoe",))
