"""Results of hosted tools come after their calls. URLs that clients and models write: nothing in one
raises, and private addresses are found in every form."""

from schemas.conversation import Call, HostedTool, Message, Result, Text
from services.frontend.content.added_results import add_results, insert_results
from services.frontend.content.hosted_tools import hosted_argument, missing_tools
from services.frontend.content.urls import host_of, is_public, is_url, path_of
from services.frontend.hosted.policy import is_permitted
from tests.kit.conversations import user
from tests.kit.every import for_each


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


@for_each(["https://a\0b/x.png", "ht\ttps://a/x", "https://[/x", "https://a:b/", "https://\ud800/"])
def test_what_cannot_be_a_url_has_no_host_and_is_not_permitted(url: str) -> None:
    assert not is_url(url)
    assert host_of(url) is None
    assert path_of(url)
    tool = HostedTool("web_fetch", allowed_domains=["example.org"], blocked_domains=[url])
    assert not is_permitted(tool, url)
    assert is_permitted(tool, "https://example.org/")


PRIVATE = (
    "127.0.0.1 10.1.2.3 169.254.169.254 100.64.0.1 224.0.0.1 239.255.255.250 0.0.0.0 "
    "255.255.255.255 127.1 2130706433 0x7f000001 ::1 :: fe80::1 fec0::1 fc00::1 ff02::1 "
    "::ffff:127.0.0.1 64:ff9b::7f00:1 64:ff9b::a00:1 2002:7f00:1:: 2002:a9fe:a9fe::1 "
    "2001:0:7f00:1:: 64:ff9b:1::a00:1 localhost a.localhost printer.local "
    "metadata.google.internal"
)


@for_each(PRIVATE.split())
def test_private_address_is_not_public(host: str) -> None:
    assert not is_public(host)


@for_each(["8.8.8.8", "2606:4700::1111", "b\u00fccher.example"])
def test_public_address_is_public(host: str) -> None:
    assert is_public(host)
