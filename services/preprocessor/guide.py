"""Finds what constrains a turn's output: the grammar that enforces the request's promises and the
operator's rule for calls, and the budget of its reasoning tokens. Pure and CPU-bound."""

from collections.abc import Collection
from typing import Literal, TypeAlias

from msgspec import Struct, json
from msgspec.structs import replace

from schemas.conversation import Conversation
from schemas.requests import ThoughtBudget
from services.families.writing import Tags
from services.guides.outline import outlined_tools
from services.guides.promises import may_call, promises
from services.guides.turn_grammar import TurnForm, turn_grammar
from services.guides.writer import Unguidable
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.output_settings import OutputSettings
from services.preprocessor.prompt.prompt_maker import Prompt
from services.runtime.caches.memo import Memo

CallRule: TypeAlias = Literal["", "syntax", "schema"]
"""The check that every call of a turn must pass, as in `ParseContext.check_calls`."""
_encode = json.Encoder().encode


class Guided(Struct, frozen=True):
    """A grammar guides the turn in some engine that may take it."""

    rule: CallRule = ""
    is_promised: bool = True
    """The request promises something; otherwise the turn may run without the grammar."""
    covers_turn: bool = True
    """Every engine that may take the turn guides all of it."""


class Checked(Struct, frozen=True):
    """No grammar guides the turn; the parser checks its calls if there is a rule."""

    rule: CallRule = ""


class TurnGuide(Struct, frozen=True):
    """The constraints of a turn's output."""

    grammar: str = ""
    """Grammar of the whole output; "": it is free."""
    thought_budget: ThoughtBudget | None = None
    """The limit of reasoning tokens; None: no limit of its own."""
    check_calls: CallRule = ""
    """The check of calls in the parser."""
    optional_grammar: bool = False
    """Nothing is promised to the client: an engine may refuse the grammar."""


def enforcement(
    conversation: Conversation,
    guide_calls: Literal["off", "syntax", "schema"],
    engines: Collection[bool],
    *,
    resumed: bool,
) -> Guided | Checked:
    """How the request's promises and the operator's setting for calls are enforced. `engines`:
    whether each one that may take the turn has grammars; some of them start one at the first token
    that they decode, so that it does not guide all of a resumed turn."""
    rule: CallRule = ""
    if guide_calls != "off" and may_call(conversation):
        rule = guide_calls
    is_promised = bool(promises(conversation))
    if any(engines) and (rule or is_promised):
        return Guided(rule, is_promised, all(engines) and not resumed)
    return Checked(rule)


class TurnGuides:
    """Finds the guides of one model's turns. Keeps its grammars. For any thread."""

    def __init__(self, setup: ModelSetup) -> None:
        self._setup = setup
        self._grammars: Memo[str] = Memo(setup.cache_bytes)
        """The grammars, by the forms of turns as JSON."""

    def guide(
        self,
        conversation: Conversation,
        prompt: Prompt,
        output: OutputSettings,
        how: Guided | Checked,
    ) -> TurnGuide:
        """The guide of a turn. A grammar takes some milliseconds of CPU."""
        budget = thought_budget(conversation, prompt, output, self._setup)
        if isinstance(how, Checked):
            return TurnGuide("", budget, how.rule)

        form = turn_form(conversation, prompt)
        grammar = self.grammar(form, output.stop_ids, how.rule)
        if budget is not None:
            after_thought = replace(form, in_reasoning=False, forced=False, prefix="")
            rest = self.grammar(after_thought, output.stop_ids, how.rule)
            budget = replace(budget, grammar=rest)
        check_calls = "" if grammar and how.covers_turn else how.rule
        return TurnGuide(grammar, budget, check_calls, bool(grammar) and not how.is_promised)

    def grammar(self, form: TurnForm, stop_ids: list[int], rule: CallRule = "") -> str:
        """The grammar of turns of a form, with the rule for their calls; "": none can describe the
        family's calls."""

        def make(_: bytes) -> str:
            return _grammar(form, self._setup, stop_ids, outlined=rule == "schema")

        return self._grammars.get(_encode((form, stop_ids, rule)), make)


def turn_form(conversation: Conversation, prompt: Prompt) -> TurnForm:
    """The form of turns that a request promises."""
    choice = conversation.tool_choice
    rendered = prompt.rendered
    tools = prompt.tools
    if rendered.allowed_tools:
        tools = [tool for tool in tools if tool.name in rendered.allowed_tools]
    return TurnForm(
        tools=tools,
        format=conversation.format,
        parallel=choice.parallel,
        in_reasoning=rendered.in_reasoning,
        forced=choice.mode in ("any", "tool"),
        prefix=rendered.prefix,
    )


def _grammar(form: TurnForm, setup: ModelSetup, stop_ids: list[int], *, outlined: bool) -> str:
    """`outlined`: tools that are not strict are guided by their outlines."""
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
    conversation: Conversation, prompt: Prompt, output: OutputSettings, setup: ModelSetup
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
    has_no_thoughts = conversation.prompt or rendered.enforced_format or not output.max_tokens
    if has_no_thoughts or thinking.mode == "disabled":
        return None
    return ThoughtBudget.of(setup.reasoning_markers, tokens, in_reasoning=rendered.in_reasoning)
