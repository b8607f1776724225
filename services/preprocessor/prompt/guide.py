"""Makes the grammar that holds a turn to its request's promises. Pure and CPU-bound: some milliseconds."""

from schemas.conversation import Conversation
from services.guides.calls import Unguidable
from services.guides.promises import promises
from services.guides.turn import TurnForm, turn_grammar
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt.assembly import Prompt
from services.preprocessor.prompt.constraints import allowed_tools


def turn_guide(conversation: Conversation, prompt: Prompt, setup: ModelSetup) -> str:
    """The grammar; "" where nothing is promised, and for a family whose calls no grammar can describe."""
    if not promises(conversation):
        return ""
    allowed = allowed_tools(conversation)
    form = TurnForm(
        tools=[tool for tool in prompt.tools if not allowed or tool.name in allowed],
        format=conversation.format,
        parallel=conversation.tool_choice.parallel,
        in_reasoning=prompt.in_reasoning,
        forced=conversation.tool_choice.mode in ("any", "tool"),
        prefix=prompt.prefix,
    )
    try:
        return turn_grammar(form, setup.family, setup.tokenizer.added, prompt.stop_ids).text
    except Unguidable:
        return ""
