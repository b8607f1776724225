"""Finds what constrains a turn's output: the grammar that enforces the request's promises and the
operator's rule for calls, and the budget of its reasoning tokens. Pure and CPU-bound."""

from typing import Literal, TypeAlias

from msgspec import Struct, json
from msgspec.structs import replace

from schemas.conversation import Conversation
from schemas.frames import ThoughtBudget
from services.families.writing import Tags
from services.guides.outline import outlined_tools
from services.guides.promises import may_call
from services.guides.turn import TurnForm, turn_grammar
from services.guides.writer import Unguidable
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import LimitedPrompt

CallRule: TypeAlias = Literal["", "syntax", "schema"]
"""What every call of a turn must satisfy, as in `ParseContext.check_calls`."""


_encode = json.Encoder().encode


class TurnGuide(Struct, frozen=True):
    """What constrains a turn's output."""

    grammar: str = ""
    """As in `GenerateRequest`."""
    thought_budget: ThoughtBudget | None = None
    """As in `GenerateRequest`."""
    check_calls: CallRule = ""
    """As in `ParseContext`."""


def call_rule(
    conversation: Conversation, guide_calls: Literal["off", "syntax", "schema"]
) -> CallRule:
    """The rule for the calls of a turn, by the operator's setting; "": there is none."""
    if guide_calls == "off" or not may_call(conversation):
        return ""
    return guide_calls


def turn_guide(
    conversation: Conversation,
    prompt: LimitedPrompt,
    setup: ModelSetup,
    *,
    with_grammar: bool,
    rule: CallRule = "",
    covers_turn: bool = True,
) -> TurnGuide:
    """The guide of a turn. `with_grammar` takes some milliseconds of CPU, and is of no use where
    nothing is promised and there is no rule, or no engine can enforce it. `covers_turn`: whichever
    worker takes the turn, the grammar guides all of it; otherwise the parser checks the calls."""
    budget = thought_budget(conversation, prompt, setup)
    grammar = ""
    if with_grammar:
        grammar = promised_grammar(conversation, prompt, setup, rule=rule)
        if budget is not None:
            rest = promised_grammar(conversation, prompt, setup, rule=rule, after_thought=True)
            budget = replace(budget, grammar=rest)
    return TurnGuide(grammar, budget, "" if grammar and covers_turn else rule)


def promised_grammar(
    conversation: Conversation,
    prompt: LimitedPrompt,
    setup: ModelSetup,
    *,
    rule: CallRule = "",
    after_thought: bool = False,
) -> str:
    """The grammar that enforces the request's promises and the rule for calls; "": none can
    describe the family's calls. `after_thought`: that of the part of the turn after a thought that
    was ended."""
    choice = conversation.tool_choice
    rendered = prompt.rendered
    tools = prompt.tools
    if rendered.allowed_tools:
        tools = [tool for tool in tools if tool.name in rendered.allowed_tools]
    form = TurnForm(
        tools=tools,
        format=conversation.format,
        parallel=choice.parallel,
        in_reasoning=rendered.in_reasoning,
        forced=choice.mode in ("any", "tool"),
        prefix=rendered.prefix,
    )
    if after_thought:
        form = replace(form, in_reasoning=False, forced=False, prefix="")

    def make(_: bytes) -> str:
        return _grammar(form, setup, prompt.stop_ids, outlined=rule == "schema")

    return setup.grammars.get(_encode((form, prompt.stop_ids, rule)), make)


def _grammar(form: TurnForm, setup: ModelSetup, stop_ids: list[int], *, outlined: bool) -> str:
    """As `promised_grammar`. `outlined`: tools that are not strict are guided by their outlines."""
    family = setup.family
    if outlined:
        quoted = not isinstance(family.style.arguments, Tags)
        form = replace(form, tools=outlined_tools(form.tools, quoted=quoted))
    try:
        grammar, _ = turn_grammar(form, family, setup.tokenizer.added, stop_ids)
    except Unguidable:
        return ""
    return grammar


def thought_budget(
    conversation: Conversation, prompt: LimitedPrompt, setup: ModelSetup
) -> ThoughtBudget | None:
    """The limit of the turn's reasoning tokens: the client's, else the operator's for its level of
    effort. Without a grammar. None: there is none, or the turn has no thoughts."""
    thinking = conversation.thinking
    tokens = thinking.budget_tokens
    if tokens is None:
        tokens = setup.card.effort_budgets.get(thinking.effort or "")
    if tokens is None or setup.reasoning_markers is None:
        return None

    rendered = prompt.rendered
    has_no_thoughts = conversation.prompt or rendered.enforced_format or not prompt.max_tokens
    if has_no_thoughts or thinking.mode == "disabled":
        return None
    return replace(setup.reasoning_markers, tokens=tokens, in_reasoning=rendered.in_reasoning)
