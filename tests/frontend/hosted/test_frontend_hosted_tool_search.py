"""Searches of deferred tools: by words, and by regular expressions that may be hostile."""

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from schemas.conversation import HostedTool, ToolSpec
from services.frontend.content.hosted_tools import hosted_spec
from services.frontend.hosted import tool_search
from services.frontend.hosted.tool_search import MAX_FOUND, InvalidPattern, find_tools


def tool(name: str, description: str = "", **arguments: str) -> ToolSpec:
    properties = {key: {"type": "string", "description": about} for key, about in arguments.items()}
    schema = {"type": "object", "properties": properties}
    return ToolSpec(name, description, schema, deferred=True)


TOOLS = [
    tool("getWeather", "Current conditions.", city="The town to look at."),
    tool("slack_send_message", "Posts to a channel.", channel="Its name."),
    tool("slack_list_channels", "Lists channels."),
    tool("create_issue", "Opens an issue; use getWeather for weather."),
    ToolSpec("listed_weather", "Weather, but not deferred."),
    hosted_spec(HostedTool("tool_search_bm25")),
]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("what is the weather in this town", "getWeather"),
        ("send a slack message", "slack_send_message"),
        ("channels of slack", "slack_list_channels"),
        ("issue", "create_issue"),
        ("issues", "create_issue"),
    ],
)
def test_words_find_tools(query: str, first: str) -> None:
    assert find_tools("tool_search_bm25", query, TOOLS)[0] == first


@pytest.mark.parametrize(
    ("query", "description"),
    [
        *[("copy", "Copies files."), ("categories", "The category."), ("box", "Opens boxes.")],
        *[("cache", "Clears caches."), ("resume", "Reads a r\u00e9sum\u00e9.")],
        *[
            ("\u9501\u5b9a\u95e8\u7684\u5de5\u5177", "\u9501\u95e8"),
            ("\u5929\u6c14", "\u67e5\u8be2\u5929\u6c14"),
        ],
        *[
            ("\u30ed\u30c3\u30af", "\u30c9\u30a2\u3092\u30ed\u30c3\u30af\u3059\u308b"),
            ("\ub0a0\uc528\ub97c", "\ub0a0\uc528"),
        ],
    ],
)
def test_words_have_many_forms(query: str, description: str) -> None:
    tools = [*TOOLS, tool("sought", description)]
    assert find_tools("tool_search_bm25", query, tools) == ["sought"]


def test_no_word_is_known() -> None:
    assert find_tools("tool_search_bm25", "quantum", TOOLS) == []
    assert find_tools("tool_search_bm25", "weather", []) == []


def test_patterns_find_tools() -> None:
    assert find_tools("tool_search_regex", "weather", TOOLS) == ["getWeather", "create_issue"]
    assert find_tools("tool_search_regex", "^slack_.*", TOOLS) == [
        "slack_send_message",
        "slack_list_channels",
    ]
    assert find_tools("tool_search_regex", "the TOWN", TOOLS) == ["getWeather"]
    assert find_tools("tool_search_regex", "nothing", TOOLS) == []


def test_nested_arguments_are_read() -> None:
    inner = {"properties": {"zip_code": {"description": "Postal number."}}}
    schema = {
        "properties": {"address": {"items": [inner, {"anyOf": [{"description": "Or a map"}]}]}}
    }
    tools = [*TOOLS, ToolSpec("ship", schema=schema, deferred=True)]
    for query in ("zip code", "postal", "map"):
        assert find_tools("tool_search_bm25", query, tools) == ["ship"]


def test_few_tools_are_found() -> None:
    many = [tool(f"weather_{number}") for number in range(50)]
    assert len(find_tools("tool_search_bm25", "weather", many)) == MAX_FOUND
    assert len(find_tools("tool_search_regex", "weather", many)) == MAX_FOUND


def test_names_have_their_namespace() -> None:
    spaced = ToolSpec("ship", "Ships.", namespace="crm", deferred=True)
    assert find_tools("tool_search_regex", "^crm__", [spaced]) == ["crm__ship"]


@pytest.mark.parametrize("pattern", ["(", "[", "*", "(?P<x>)(?P<x>)\\"])
def test_invalid_patterns(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        find_tools("tool_search_regex", pattern, TOOLS)


@pytest.mark.parametrize(
    "pattern",
    [
        *("((((a{99}){99}){99}){99})", "a{1,100000000}", "(?:a{0,40}){30}"),
        *("(?R)(?R)", "(?1)(a(?1)?)", "(?&x)", "(?P>x)", "(?|(a)|(b))"),
        *("(?:abc){e<=20}", "(?b)a", "(?ie:a)", r"\L<names>", r"\mget", r"\p{L}", "(?V1)a"),
        *("(?<a>f)", "(*SKIP)a"),
    ],
)
def test_expensive_patterns_and_those_of_no_re_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        find_tools("tool_search_regex", pattern, TOOLS)


@pytest.mark.parametrize(
    "pattern", ["get(?i:W)eather", "(?P<a>get)(?!x)W", r"w\w{2,9}r\{?", "(?<=get)w"]
)
def test_patterns_of_re_are_served(pattern: str) -> None:
    assert find_tools("tool_search_regex", pattern, TOOLS)[0] == "getWeather"


def test_pattern_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_search, "PATTERN_S", 0.05)
    slow = [tool("t", "a" * 5000 + "!")]
    with pytest.raises(TimeoutError):
        find_tools("tool_search_regex", r"^(a|aa)+$", slow)


@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=5), st.data())
def test_each_tool_is_found_by_its_description(texts: list[str], data: st.DataObject) -> None:
    tools = [tool(f"t{number}", text) for number, text in enumerate(texts)]
    number = data.draw(st.integers(0, len(texts) - 1))
    if any(character.isalnum() for character in texts[number]):
        assert f"t{number}" in find_tools("tool_search_bm25", texts[number], tools)
    assert f"t{number}" in find_tools("tool_search_regex", regex.escape(texts[number]), tools)


@given(st.text(max_size=200))
def test_any_pattern_finds_tools_or_is_refused(pattern: str) -> None:
    try:
        found = find_tools("tool_search_regex", pattern, TOOLS)
    except (InvalidPattern, TimeoutError):
        return
    assert set(found) <= {"getWeather", "slack_send_message", "slack_list_channels", "create_issue"}
