"""Results of hosted tools come after the message with their calls, in the order of the calls."""

from schemas.conversation import Call, Message, Result, Text
from services.frontend.content.hosted_tools import (
    add_results,
    hosted_argument,
    insert_results,
    missing_tools,
)
from tests.kit.conversations import user


def calls(*ids: str) -> Message:
    return Message("assistant", [Call(id, "f", "{}") for id in ids])


def results(*texts: str) -> Message:
    return Message("tool", [one(text) for text in texts])


def one(text: str) -> Result:
    """A result for the call that its first letter names."""
    return Result(text[0], [Text(text)])


def test_results_are_placed_as_if_each_were_added_when_it_comes() -> None:
    messages = [calls("a", "b"), user("Hi."), calls("c", "b"), results("c1"), user("Well?")]
    arrivals = [("b1", 1), ("a1", 1), ("b2", 4), ("a2", 5), ("x", 5)]
    assert insert_results(messages, [(one(text), before) for text, before in arrivals]) == [
        *(calls("a", "b"), results("a1", "a2", "b1"), user("Hi.")),
        *(calls("c", "b"), results("c1", "b2"), user("Well?")),
    ]
    early = insert_results([calls("a"), results("a1")], [(one("a2"), 1)])
    assert early == [calls("a"), results("a2"), results("a1")], "a message that came later"
    again = add_results([calls("a"), calls("a")], [one("a1")])
    assert again == [calls("a"), calls("a"), results("a1")], "the last message with the call"


def test_arguments_without_the_one_argument_are_none() -> None:
    assert hosted_argument("web_search", '{"query": " tides "}') == "tides"
    for arguments in ('{"query": 3}', "[]", "{", '{"url": "x"}', "[" * 100_000):
        assert hosted_argument("web_search", arguments) == ""


def test_missing_tools_are_named_in_safe_letters() -> None:
    assert missing_tools([]) == missing_tools(["\n"]) == []
    (text,) = missing_tools(["web_search", "web_search", "x\n y"])
    assert text.text.startswith(
        "Tools that were requested but are not available on this server: web_search, xy. "
    )
