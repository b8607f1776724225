"""Finds what constrains a turn's output: the grammar that enforces the request's promises, and the
budget of its reasoning tokens. Pure and CPU-bound."""

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Conversation
from schemas.frames import ThoughtBudget
from services.guides.turn import TurnForm, turn_grammar
from services.guides.writer import Unguidable
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import Prompt


class TurnGuide(Struct, frozen=True):
    """What constrains a turn's output."""

    grammar: str = ""
    """As in `GenerateRequest`."""
    thoughts: ThoughtBudget | None = None
    """As in `GenerateRequest`."""


def turn_guide(
    conversation: Conversation, prompt: Prompt, setup: ModelSetup, *, promised: bool
) -> TurnGuide:
    """The guide of a turn. `promised`: with a grammar, which takes some milliseconds of CPU; False:
    nothing is promised, or no engine can enforce it."""
    thoughts = thought_budget(conversation, prompt, setup)
    if not promised:
        return TurnGuide(thoughts=thoughts)
    if thoughts is not None:
        rest = promised_grammar(conversation, prompt, setup, after_thought=True)
        thoughts = replace(thoughts, grammar=rest)
    return TurnGuide(promised_grammar(conversation, prompt, setup), thoughts)


def promised_grammar(
    conversation: Conversation, prompt: Prompt, setup: ModelSetup, *, after_thought: bool = False
) -> str:
    """The grammar that enforces the request's promises; "": none can describe the family's calls.
    `after_thought`: that of the part of the turn after a thought that was ended."""
    choice = conversation.tool_choice
    allowed = prompt.allowed_tools
    tools = prompt.tools
    if allowed:
        tools = [tool for tool in tools if tool.name in allowed]

    form = TurnForm(
        tools=tools,
        format=conversation.format,
        parallel=choice.parallel,
        in_reasoning=prompt.in_reasoning,
        forced=choice.mode in ("any", "tool"),
        prefix=prompt.prefix,
    )
    if after_thought:
        form = replace(form, in_reasoning=False, forced=False, prefix="")
    try:
        grammar, _ = turn_grammar(form, setup.family, setup.tokenizer.added, prompt.stop_ids)
    except Unguidable:
        return ""
    return grammar


def thought_budget(
    conversation: Conversation, prompt: Prompt, setup: ModelSetup
) -> ThoughtBudget | None:
    """The limit of the turn's reasoning tokens: the client's, else the operator's for its level of
    effort. Without a grammar. None: there is none, or the turn has no thoughts."""
    thinking = conversation.thinking
    tokens = thinking.budget_tokens
    if tokens is None:
        tokens = setup.card.effort_budgets.get(thinking.effort or "")
    if tokens is None or setup.thoughts is None:
        return None

    has_no_thoughts = conversation.prompt or prompt.enforced_format or not prompt.max_tokens
    if has_no_thoughts or thinking.mode == "disabled":
        return None
    return replace(setup.thoughts, tokens=tokens, in_reasoning=prompt.in_reasoning)
