"""A choice that leaves nothing to call."""

from tests.kit.bodies import RESPONSES, block, function


def test_required_call_of_no_offered_tool_is_refused() -> None:
    choice = block("allowed_tools", mode="required", tools=[block("web_search")])
    refusal = RESPONSES.refusal(tools=[function()], tool_choice=choice)
    assert refusal.param == "tool_choice"
    assert refusal.message == "Tool choice 'required' must be specified with 'tools' parameter."


def test_free_choice_of_no_offered_tool_allows_none() -> None:
    choice = block("allowed_tools", mode="auto", tools=[block("web_search")])
    read = RESPONSES.read(tools=[function()], tool_choice=choice)
    assert read.tool_choice.mode == "none"
