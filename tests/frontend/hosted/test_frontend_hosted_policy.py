"""Calls that may run, and results that may be shown."""

from schemas.conversation import Conversation, HostedTool, Media, Message, Result, Text
from schemas.events import WebSource
from services.frontend.hosted.policy import is_permitted, permitted_sources, refusal_code
from tests.kit.every import for_rows

SEARCH, FETCH = HostedTool("web_search"), HostedTool("web_fetch")
PUBLIC = "https://example.org/a?b=c"


def conversation(text: str) -> Conversation:
    return Conversation("m", [Message("user", [Text(f"Read {text} please.")])])


def test_private_addresses_are_refused_unless_allowed() -> None:
    for url in ("http://user@192.168.0.1/", "http://LOCALHOST./", "http://[::ffff:10.0.0.1]:80/x"):
        asked = conversation(url)
        assert refusal_code(FETCH, url, asked, allow_private=False) == "url_not_allowed", url
        assert refusal_code(FETCH, url, asked, allow_private=True) is None, url


@for_rows(
    [
        (PUBLIC, None),
        ("http://8.8.8.8/", None),
        ("file:///etc/passwd", "invalid_tool_input"),
        ("http://[broken/", "invalid_tool_input"),
        ("example.org", "invalid_tool_input"),
        (PUBLIC + "x" * 2048, "url_too_long"),
    ],
)
def test_url_is_checked(url: str, code: str | None) -> None:
    assert refusal_code(FETCH, url, conversation(url), allow_private=False) == code


def test_url_of_the_model_alone_is_refused() -> None:
    found = Message("tool", [Result("c", [Media("image"), Text(f"see {PUBLIC}")])])
    own = Message("assistant", [Text(f"I read {PUBLIC}")])
    elsewhere = conversation("https://example.org/")
    assert refusal_code(FETCH, PUBLIC, elsewhere, allow_private=False) == "url_not_in_prior_context"
    for turn, code in ((own, "url_not_in_prior_context"), (found, None)):
        assert refusal_code(FETCH, PUBLIC, Conversation("m", [turn]), allow_private=False) == code
    instructed = Conversation("m", [], system=[Text(PUBLIC)])
    assert refusal_code(FETCH, PUBLIC, instructed, allow_private=False) is None


def test_query_length_is_limited() -> None:
    asked = conversation("")
    assert refusal_code(SEARCH, "http://127.0.0.1/", asked, allow_private=False) is None
    assert refusal_code(SEARCH, "x" * 1001, asked, allow_private=False) == "query_too_long"


@for_rows(
    [
        ("https://a.example.com/x", ["example.com"], [], True),
        ("https://badexample.com/x", ["example.com"], [], False),
        ("https://example.com/blog/1", ["example.com/blog"], [], True),
        ("https://example.com/", [], ["example.com"], False),
        ("https://example.org/", [], ["example.com"], True),
    ],
)
def test_lists_of_domains_permit_urls(
    url: str, allowed: list[str], blocked: list[str], expected: bool
) -> None:
    tool = HostedTool("web_search", allowed_domains=allowed, blocked_domains=blocked)
    assert is_permitted(tool, url) is expected


def test_results_are_cut() -> None:
    pages = [WebSource(f"https://e.org/{n}", "T", "x" * 50) for n in range(4)]
    kept = permitted_sources(SEARCH, pages, 100)
    assert [len(page.text) for page in kept] == [50, 18]
    assert sum(len(page.url) + len(page.title) + len(page.text) for page in kept) == 100
