"""What a request promises, and what of that is not enforced."""

from itertools import product
from typing import Any

from schemas.control import THINKING_BUDGET
from schemas.conversation import (
    Conversation,
    Grammar,
    OutputFormat,
    RawPrompt,
    Sampling,
    Thinking,
    ToolChoice,
    ToolSpec,
)
from services.guides.promises import GRAMMAR, not_enforced, promises
from tests.kit.every import for_rows

OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
PLAIN, STRICT = ToolSpec("plain", schema=OBJECT), ToolSpec("strict", schema=OBJECT, strict=True)
PATCH = ToolSpec("patch", kind="custom", grammar=Grammar("regex", "a+"))
SPACED = ToolSpec("inner", schema=OBJECT, namespace="space")
UNEMBEDDABLE = ToolSpec("odd", kind="custom", grammar=Grammar("lark", 'start: "a"\n%ignore " "'))


def conversation(*tools: ToolSpec, choice: ToolChoice | None = None, **more: Any) -> Conversation:
    return Conversation("m", [], tools=list(tools), tool_choice=choice or ToolChoice(), **more)


FORM = OutputFormat("json_object")


@for_rows(
    [
        (conversation(), [], []),
        (conversation(PLAIN, STRICT), ["strict"], ["strict"]),
        (conversation(PLAIN, PATCH), ["grammar"], ["grammar"]),
        (conversation(PLAIN, format=FORM), ["format"], ["format"]),
        (conversation(PLAIN, STRICT, choice=ToolChoice("none"), format=FORM), [], []),
        (conversation(PLAIN, SPACED, choice=ToolChoice("any")), ["tool_choice"], ["tool_choice"]),
        (conversation(PLAIN, choice=ToolChoice("any")), ["tool_choice"], []),
        (conversation(PLAIN, STRICT, choice=ToolChoice("tool", "plain")), ["tool_choice"], []),
        (conversation(PLAIN, STRICT, choice=ToolChoice(allowed=["plain"])), ["allowed_tools"], []),
        (conversation(STRICT, sampling=Sampling(ignore_eos=True)), [], []),
        (conversation(STRICT, prompt=RawPrompt(text="x")), [], []),
    ]
)
def test_promises_of_a_request_are_found(
    asked: Conversation, found: list[str], missing: list[str]
) -> None:
    assert sorted(promises(asked)) == found
    assert not_enforced(asked, ["guided"], "hermes") == missing
    assert not_enforced(asked, [GRAMMAR], "hermes") == []
    assert not_enforced(asked, [GRAMMAR], "beam") == missing
    assert not_enforced(asked, [GRAMMAR], "nonesuch") == missing


@for_rows([*product(("default", "enabled", "disabled"), (None, 0, 1024), ([], [GRAMMAR]))])
def test_budget_of_a_turn_that_thinks_is_enforced_by_workers_with_the_feature(
    mode: Any, budget: int | None, features: list[str]
) -> None:
    thinking = Thinking(mode, budget)
    named = ["thinking_budget"] if budget is not None and mode != "disabled" else []
    thinks = conversation(thinking=thinking)
    assert not_enforced(thinks, features, "hermes") == named
    assert not_enforced(thinks, [*features, THINKING_BUDGET], "hermes") == []
    strict = [] if GRAMMAR in features else ["strict"]
    asked = conversation(STRICT, thinking=thinking)
    assert promises(asked) == {"strict"}
    assert not_enforced(asked, features, "hermes") == [*strict, *named]
    raw = conversation(prompt=RawPrompt(text="x"), thinking=thinking)
    assert not_enforced(raw, features, "hermes") == []


def test_a_bare_name_means_the_tool_without_a_namespace() -> None:
    strict = ToolSpec("plain", schema=OBJECT, namespace="space", strict=True)
    bare = conversation(strict, PLAIN, choice=ToolChoice("tool", "plain"))
    assert not_enforced(bare, [], "hermes") == []
    other = conversation(strict, PLAIN, choice=ToolChoice("tool", "plain", namespace="space"))
    assert not_enforced(other, [], "hermes") == ["strict"]


def test_a_grammar_that_cannot_be_embedded_is_not_enforced() -> None:
    assert not_enforced(conversation(UNEMBEDDABLE, STRICT), [GRAMMAR], "hermes") == ["grammar"]
