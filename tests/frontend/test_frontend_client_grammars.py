"""Tests that grammars of freeform tools are checked, and that a header names formats that are not
enforced."""

from typing import Any

import pytest
from aiohttp import ClientSession
from msgspec.structs import replace

from schemas.errors import Invalid
from services.frontend.apis.shared import tools
from services.frontend.apis.shared.tools import checked_grammar
from tests.kit.frontend import CARD, MODEL, FakeGateway, serving
from tests.kit.waiting import eventually

BAD = [
    ("lark", 'start: x y\nx: "a"', "unknown name"),
    ("lark", 'start: "a', "lexer error"),
    ("lark", 'begin: "a"', "start"),
    ("regex", "a(b", "unclosed group"),
    ("regex", "(?=a)b", "look-ahead"),
]


def chat(syntax: str, definition: str) -> tuple[str, dict[str, Any]]:
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    tool = {"type": "custom", "custom": {"name": "patch", "format": form}}
    return "/v1/chat/completions", {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [tool],
    }


def responses(syntax: str, definition: str) -> tuple[str, dict[str, Any]]:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return "/v1/responses", {
        "model": MODEL,
        "input": "hi",
        "tools": [{"type": "custom", "name": "p", "format": form}],
    }


PLACES = {
    chat: "tools[0].custom.format.grammar.definition",
    responses: "tools[0].format.definition",
}


@pytest.mark.parametrize("make", [chat, responses])
async def test_invalid_grammar_is_refused(make: Any) -> None:
    pytest.importorskip("llguidance")
    async with serving() as served, ClientSession(served.url) as http:
        for syntax, definition, reason in BAD:
            path, body = make(syntax, definition)
            async with http.post(path, json=body) as response:
                error = (await response.json())["error"]
                assert (response.status, error["type"]) == (400, "invalid_request_error")
                assert (error["param"], error["code"]) == (PLACES[make], "invalid_value")
                assert error["message"].startswith(f"Invalid value for '{PLACES[make]}': ")
                assert reason in error["message"]
                assert "\n" not in error["message"]
        for good in (("lark", 'start: "a" x\nx: /b+/'), ("regex", "^a{2}$")):
            path, body = make(*good)
            async with http.post(path, json=body) as response:
                assert response.status == 200


def test_grammar_is_checked_roughly_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "find_spec", lambda name: None)
    for syntax, definition in [("lark", 'begin: "rough"'), ("regex", "rough(b")]:
        with pytest.raises(Invalid, match="Invalid value for 'here'"):
            checked_grammar(syntax, definition, "here")
    assert checked_grammar("lark", '// rough\n?start: "x"', "here").syntax == "lark"
    assert checked_grammar("regex", "rough{2}", "here").syntax == "regex"


ANSWER = {"type": "json_schema", "schema": {"type": "object", "properties": {}}}
STRICT = {"name": "f", "input_schema": {"type": "object", "properties": {}}, "strict": True}


@pytest.mark.parametrize(
    ("features", "family", "header"),
    [
        ([], "hermes", "format,strict"),
        (["guided"], "hermes", "format,strict"),
        (["guided", "grammar"], "hermes", None),
        (["guided", "grammar"], "pythonic", "format,strict"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_unenforced_grammar_is_named(
    features: list[str], family: str, header: str | None, stream: bool
) -> None:
    gateway = FakeGateway(cards=[replace(CARD, features=features, family=family)])
    ask = {
        "model": MODEL,
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
        "stream": stream,
    }
    promising = {**ask, "tools": [STRICT], "output_config": {"format": ANSWER}}
    async with serving(gateway) as served, ClientSession(served.url) as http:
        for body, expected in (
            (promising, header),
            ({**ask, "tools": [{**STRICT, "strict": False}]}, None),
        ):
            async with http.post("/v1/messages", json=body) as response:
                assert response.status == 200
                assert response.headers.get("x-turnwire-not-enforced") == expected
                await response.read()
        if header is not None:
            logged = next(line for line in served.lines if "not_enforced" in line)
            assert logged["not_enforced"] == header.split(",")


HELLO = [{"role": "user", "content": "hi"}]
BUDGETS: list[tuple[str, dict[str, Any], bool]] = [
    (
        "/v1/messages",
        {"max_tokens": 4096, "thinking": {"type": "enabled", "budget_tokens": 1024}},
        True,
    ),
    ("/v1/messages", {"max_tokens": 4096, "thinking": {"type": "adaptive"}}, False),
    ("/v1/messages", {"max_tokens": 4096, "thinking": {"type": "disabled"}}, False),
    ("/v1/messages", {"max_tokens": 4096}, False),
    ("/v1/chat/completions", {"thinking_budget": 64}, True),
    ("/v1/chat/completions", {"thinking_token_budget": 64}, True),
    ("/v1/chat/completions", {"thinking": {"type": "enabled", "budget_tokens": 64}}, True),
    ("/v1/chat/completions", {"thinking": False, "thinking_budget": 64}, False),
    ("/v1/chat/completions", {"thinking_budget": 0}, False),
    ("/v1/chat/completions", {"reasoning_effort": "low"}, False),
]


@pytest.mark.parametrize(("path", "body", "named"), BUDGETS)
@pytest.mark.parametrize("features", [[], ["guided", "grammar"]])
async def test_thinking_budget_is_named_as_not_enforced(
    path: str, body: dict[str, Any], named: bool, features: list[str]
) -> None:
    gateway = FakeGateway(cards=[replace(CARD, features=features, family="hermes")])
    async with serving(gateway) as served, ClientSession(served.url) as http:
        async with http.post(path, json={"model": MODEL, "messages": HELLO, **body}) as response:
            assert response.status == 200, await response.text()
            assert response.headers.get("x-turnwire-not-enforced") == (
                "thinking_budget" if named else None
            )
        assert any("not_enforced" in line for line in served.lines) == named


async def test_background_response_names_an_unenforced_grammar() -> None:
    body = {"model": MODEL, "input": "hi", "background": True}
    tool = {
        "type": "function",
        "name": "f",
        "strict": True,
        "parameters": {"type": "object", "properties": {}},
    }
    async with (
        serving() as served,
        ClientSession(served.url) as http,
        http.post("/v1/responses", json={**body, "tools": [tool]}) as response,
    ):
        assert response.status == 200
        assert response.headers["x-turnwire-not-enforced"] == "strict"
        # Over the WebSocket there is no header: the response's own log line has it.
        await eventually(lambda: any(line.get("event") == "response" for line in served.lines))
        (line,) = (line for line in served.lines if line.get("event") == "response")
        assert line["not_enforced"] == ["strict"]
