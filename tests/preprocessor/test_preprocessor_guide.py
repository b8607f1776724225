"""The grammar of a turn, and its budget of reasoning tokens."""

import dataclasses
from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import replace

from schemas.conversation import (
    Client,
    Conversation,
    Grammar,
    Hints,
    OutputFormat,
    RawPrompt,
    Thinking,
    ToolChoice,
    ToolSpec,
)
from schemas.requests import GenerateRequest, ParseContext, ThoughtBudget, TurnRequest
from schemas.token_ids import unpack_ids
from services.families import find_family
from services.guides.promises import promises
from services.preprocessor.guide import (
    CallRule,
    Checked,
    Guided,
    TurnGuides,
    enforcement,
    thought_budget,
    turn_form,
)
from services.preprocessor.library import assemble
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.output_settings import OutputSettings, output_settings
from services.preprocessor.turn_builder import build_turn
from tests.kit.conversations import user
from tests.kit.every import for_rows
from tests.kit.model_output import written_call

llguidance: Any = pytest.importorskip("llguidance")
OBJECT: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOLS = [
    ToolSpec("count", schema=OBJECT, strict=True),
    ToolSpec("count", schema=OBJECT, strict=True, namespace="deep"),
    ToolSpec("patch", kind="custom", grammar=Grammar("regex", "a+")),
]


def asked(tools: list[ToolSpec], choice: ToolChoice | None = None, **more: Any) -> Conversation:
    return Conversation(
        "m",
        [user("hi")],
        tools=tools,
        tool_choice=choice or ToolChoice(),
        **more,
    )


def settings_of(conversation: Conversation, setup: ModelSetup) -> OutputSettings:
    return output_settings(conversation.sampling, setup, prompt_tokens=100)


def budget_of(conversation: Conversation, setup: ModelSetup) -> ThoughtBudget | None:
    prompt = assemble(conversation, setup)
    return thought_budget(conversation, prompt, settings_of(conversation, setup), setup)


class Guide:
    def __init__(
        self,
        setup: ModelSetup,
        conversation: Conversation,
        *,
        rule: CallRule = "",
        rest: bool = False,
    ) -> None:
        prompt = assemble(conversation, setup)
        backend = setup.tokenizer.backend
        self._library = llguidance.LLTokenizer(
            backend.to_str(), eos_token=backend.token_to_id("<|im_end|>")
        )
        self._setup = setup
        form = turn_form(conversation, prompt)
        if rest:
            form = replace(form, in_reasoning=False, forced=False, prefix="")
        self._stop = settings_of(conversation, setup).stop_ids
        self._text = TurnGuides(setup).grammar(form, self._stop, rule)

    def takes(self, text: str) -> bool:
        matcher = llguidance.LLMatcher(
            self._library, llguidance.LLMatcher.grammar_from_lark(self._text)
        )
        assert not matcher.is_error(), matcher.get_error()
        ids = self._setup.tokenizer.encode(text)
        if matcher.try_consume_tokens(ids) < len(ids):
            return False
        accepting = bool(matcher.is_accepting())
        assert matcher.is_stopped() or matcher.try_consume_tokens(self._stop[:1]) == int(accepting)
        return accepting


def test_worker_gets_keys_of_tenant_and_session(setup: ModelSetup) -> None:
    def made(tenant: str | None, session: str | None, retain_s: int) -> GenerateRequest:
        conversation = asked(
            [], client=Client(session, tenant=tenant), hints=Hints(retain_s=retain_s)
        )
        prompt = assemble(conversation, setup)
        request = TurnRequest("t", "f", conversation)
        output = settings_of(conversation, setup)
        guide = TurnGuides(setup).guide(conversation, prompt, output, Checked())
        return build_turn(request, prompt, output, setup, guide).for_worker

    turns = [
        made(tenant, session, 300) for tenant in (None, "a", "b") for session in (None, "s", "r")
    ]
    assert len({turn.session for turn in turns}) == 9
    assert {(turn.tenant, turn.retain_s) for turn in turns} == {("", 300), ("a", 300), ("b", 300)}
    assert made("a", "s", 0).session == made("a", "s", 300).session
    assert (made("a", "s", 0).tenant, made("a", "s", 0).retain_s) == ("", 0)


def test_request_without_promises_has_no_grammar(setup: ModelSetup) -> None:
    for conversation in (
        asked([]),
        asked([replace(TOOLS[0], strict=None)]),
        asked(TOOLS, ToolChoice("none")),
    ):
        assert not promises(conversation)
        prompt = assemble(conversation, setup)
        output = settings_of(conversation, setup)
        guide = TurnGuides(setup).guide(conversation, prompt, output, Checked())
        assert guide.grammar == ""


def test_grammar_of_a_forced_call_has_only_allowed_tools(setup: ModelSetup) -> None:
    choice = ToolChoice("any", parallel=False, allowed=["count", "deep__count"])
    guide = Guide(setup, asked(TOOLS, choice, thinking=Thinking("disabled")))
    rest = written_call("count", n="7").removeprefix("<tool_call>\n<function=")
    assert guide.takes(rest)
    assert guide.takes(written_call("deep__count", n="7").removeprefix("<tool_call>\n<function="))
    assert not guide.takes(written_call("patch", input="a").removeprefix("<tool_call>\n<function="))
    assert not guide.takes(rest + rest)
    free = Guide(setup, asked(TOOLS, choice, thinking=Thinking("disabled")), rest=True)
    assert free.takes("Done."), "its call came before any thought"


def test_end_of_a_thought_at_its_budget_fits_the_grammar(setup: ModelSetup) -> None:
    """An engine that continues inside a grammar takes it; others get the grammar of the rest."""
    assert setup.reasoning_markers is not None
    end = setup.tokenizer.decode(unpack_ids(setup.reasoning_markers.end))
    answer = OutputFormat("json_schema", OBJECT)
    conversation = asked(TOOLS, format=answer)
    whole, rest = Guide(setup, conversation), Guide(setup, conversation, rest=True)
    for text, fits in (
        ('{"n": 7}', True),
        (written_call("count", n="7"), True),
        (written_call("count", n="seven"), False),
        ("Done.", False),
        ('{"n": "x"}', False),
    ):
        assert whole.takes("Hm" + end + text) is fits, text
        assert rest.takes(text) is fits, text


def test_operators_rule_guides_calls_of_all_tools(setup: ModelSetup) -> None:
    tools = [replace(TOOLS[0], strict=None), ToolSpec("find", schema={"type": "object"})]
    conversation = asked(tools, thinking=Thinking("disabled"))
    assert not promises(conversation)
    for rule in get_args(CallRule):
        guide = Guide(setup, conversation, rule=rule)
        assert guide.takes("Hm. " + written_call("count", n="7"))
        assert guide.takes(written_call("find", any="thing"))
        assert guide.takes("Hm.")
        assert guide.takes(written_call("count", n="seven")) is (rule != "schema")
        assert guide.takes(written_call("count")) is (rule != "schema")
        assert not guide.takes(written_call("fetch", any="thing"))


def test_rule_is_for_turns_that_may_call() -> None:
    def rule(asked: Conversation, switch: Any) -> str:
        return enforcement(asked, switch, [], resumed=False).rule

    for switch in ("syntax", "schema"):
        assert rule(asked(TOOLS), switch) == switch
    assert rule(asked(TOOLS), "off") == ""
    assert rule(asked([]), "schema") == ""
    assert rule(asked(TOOLS, ToolChoice("none")), "schema") == ""
    assert rule(asked(TOOLS, prompt=RawPrompt(text="x")), "schema") == ""


FREE = [ToolSpec("f")]


@for_rows(
    [
        (TOOLS, "off", [True], False, Guided("")),
        (TOOLS, "schema", [True, False], False, Guided("schema", covers_turn=False)),
        (TOOLS, "schema", [True], True, Guided("schema", covers_turn=False)),
        (TOOLS, "schema", [False], False, Checked("schema")),
        (FREE, "off", [True], False, Checked()),
        (FREE, "syntax", [True], False, Guided("syntax", is_promised=False)),
        (FREE, "syntax", [], False, Checked("syntax")),
    ]
)
def test_turn_is_guided_where_an_engine_can(
    tools: list[ToolSpec], switch: Any, engines: list[bool], resumed: bool, how: Guided | Checked
) -> None:
    assert enforcement(asked(tools), switch, engines, resumed=resumed) == how


def test_calls_without_a_grammar_are_checked(setup: ModelSetup) -> None:
    conversation = asked(TOOLS)
    prompt = assemble(conversation, setup)

    def checks(how: Guided | Checked, setup: ModelSetup = setup) -> str:
        output = settings_of(conversation, setup)
        guide = TurnGuides(setup).guide(conversation, prompt, output, how)
        turn = build_turn(TurnRequest("t", "f", conversation), prompt, output, setup, guide)
        context = msgspec.json.decode(turn.for_worker.context, type=ParseContext)
        assert context.check_calls == guide.check_calls
        return guide.check_calls

    assert checks(Guided("schema")) == ""
    assert checks(Guided()) == ""
    assert checks(Checked()) == ""
    assert checks(Checked("syntax")) == "syntax"
    assert checks(Guided("schema", covers_turn=False)) == "schema"
    unguidable = dataclasses.replace(setup, family=find_family("xlam"))
    assert checks(Guided("schema"), unguidable) == "schema"


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, None),
        ({"thinking": Thinking("enabled", 64)}, 64),
        ({"thinking": Thinking("adaptive", effort="low")}, 100),
        ({"thinking": Thinking("disabled", 64, "low")}, None),
        ({"thinking": Thinking("enabled", 64), "format": OutputFormat("json_object")}, None),
        ({"thinking": Thinking("enabled", 64), "prompt": RawPrompt(text="x")}, None),
    ],
)
def test_budget_is_the_clients_or_that_of_its_effort(
    setup: ModelSetup, fields: dict[str, Any], tokens: int | None
) -> None:
    own = dataclasses.replace(setup, card=replace(setup.card, effort_budgets={"low": 100}))
    conversation = asked([], **fields)
    budget = budget_of(conversation, own)
    assert (budget and budget.tokens) == tokens
    assert budget is None or budget.in_reasoning
    assert setup.reasoning_markers is not None
    silent = dataclasses.replace(own, reasoning_markers=None)
    assert budget_of(conversation, silent) is None
