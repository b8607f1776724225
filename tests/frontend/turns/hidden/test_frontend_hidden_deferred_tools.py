"""Which tools are deferred for clients that cannot defer them."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.conversation import Conversation, HostedTool, Sampling, ToolChoice, ToolSpec
from services.frontend.content.hosted_tools import hosted_spec
from services.frontend.turns.hidden.deferred_tools import defer_tools, last_choice

TOOLS = [ToolSpec(f"tool_{number}") for number in range(5)]
WEB = hosted_spec(HostedTool("web_search"))


def conversation(tools: Sequence[ToolSpec] = TOOLS, **fields: Any) -> Conversation:
    return Conversation("model", [], tools=[*tools], **fields)


def deferred(conversation: Conversation, listed: int = 2) -> list[str]:
    """The deferred tools, and the name of the search with which the list ends."""
    *tools, search = defer_tools(conversation, listed).tools
    assert search.hosted == HostedTool("tool_search_bm25", hidden=True)
    return [*(tool.name for tool in tools if tool.deferred), search.name]


def test_tools_after_the_first_ones_are_deferred() -> None:
    assert deferred(conversation()) == ["tool_2", "tool_3", "tool_4", "tool_search"]
    assert deferred(conversation(), 4) == ["tool_4", "tool_search"]


def test_tools_with_names_of_their_own_come_first() -> None:
    """As in opencode's list, which is sorted by name."""
    names = ["bash", "git_log", "git_push", "read", "read-all.files", "write"]
    sorted_tools = [ToolSpec(name) for name in names]
    assert deferred(conversation(sorted_tools)) == [*names[1:5], "tool_search"]
    assert deferred(conversation(sorted_tools), 3) == [*names[2:5], "tool_search"]


def test_tools_at_the_end_may_come_and_go() -> None:
    """The list at the start of the prompt stays the same."""
    assert deferred(conversation(TOOLS[:4])) == ["tool_2", "tool_3", "tool_search"]


@pytest.mark.parametrize(
    "unchanged",
    [
        conversation(TOOLS[:2]),
        conversation([]),
        conversation([*TOOLS, replace(TOOLS[0], name="ToolSearch")]),
        conversation([*TOOLS, replace(TOOLS[0], name="tool_search")]),
        conversation([*TOOLS[:4], replace(TOOLS[4], deferred=True)]),
        conversation([*TOOLS, hosted_spec(HostedTool("tool_search_regex"))]),
        conversation(sampling=Sampling(return_token_ids=True)),
        conversation(TOOLS[:3], tool_choice=ToolChoice("tool", "tool_2")),
    ],
)
def test_other_requests_stay_as_they_are(unchanged: Conversation) -> None:
    assert defer_tools(unchanged, 2) is unchanged


def test_tools_that_a_choice_names_stay_listed() -> None:
    named = ToolChoice("tool", "c", namespace="b")
    in_namespace = [*TOOLS, ToolSpec("c", namespace="b"), WEB]
    assert "c" not in deferred(conversation(in_namespace, tool_choice=named))
    allowed = ToolChoice(allowed=["tool_3", "tool_0"])
    assert deferred(conversation(tool_choice=allowed)) == ["tool_2", "tool_4", "tool_search"]


def test_choice_allows_the_search() -> None:
    allowed = ToolChoice(allowed=["tool_3", "tool_0"])
    choice = defer_tools(conversation(tool_choice=allowed), 2).tool_choice
    assert choice.allowed == ["tool_3", "tool_0", "tool_search"]
    assert defer_tools(conversation(), 2).tool_choice == ToolChoice()


def test_names_like_that_of_a_search_are_tools() -> None:
    """Only a tool with exactly this name is the client's own search."""
    for name in ("tool_searches", "tool_search_2", "search", "toolbox_search"):
        assert deferred(conversation([*TOOLS, ToolSpec(name)]))[-1] == "tool_search"
    spaced = ToolSpec("search", namespace="tool")
    assert deferred(conversation([*TOOLS, spaced]))[-1] == "tool_search"


def test_required_call_of_the_last_turn_is_one_of_the_client() -> None:
    hidden = hosted_spec(HostedTool("tool_search_bm25", hidden=True), "tool_search")
    forced = ToolChoice("any", parallel=False)
    assert last_choice(forced, [*TOOLS[:2], hidden]) == ToolChoice(
        "any", parallel=False, allowed=["tool_0", "tool_1"]
    )
    narrow = ToolChoice("any", allowed=["tool_1", "tool_search"])
    assert last_choice(narrow, [*TOOLS, hidden]) == ToolChoice("any", allowed=["tool_1"])
    assert last_choice(ToolChoice(), [*TOOLS, WEB]) == ToolChoice("none")
    assert last_choice(ToolChoice(), [hidden]) == ToolChoice("none")
    for free in (ToolChoice(), ToolChoice(allowed=["tool_1", "tool_search"])):
        assert last_choice(free, [*TOOLS, hidden]) == free
