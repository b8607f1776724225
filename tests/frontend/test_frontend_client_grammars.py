"""Tests that grammars of freeform tools are checked, and that a header names what is not
enforced."""

from typing import Any

import pytest
from aiohttp import ClientSession
from msgspec.structs import replace

from tests.kit.bodies import (
    CHAT,
    MESSAGES,
    RESPONSES,
    SCHEMA,
    Api,
    Json,
    block,
    chat,
    messages,
    responses,
    tool,
)
from tests.kit.every import Cases
from tests.kit.frontend import CARD, FakeGateway, serving

BAD = [
    ("lark", 'start: x y\nx: "a"', "unknown name"),
    ("lark", 'begin: "a"', "start"),
    ("regex", "a(b", "unclosed group"),
    ("regex", "(?=a)b", "look-ahead"),
]
GOOD = [("lark", 'start: "a" x\nx: /b+/'), ("regex", "^a{2}$")]


def with_grammar(api: Api, syntax: str, definition: str) -> Json:
    """A request with a freeform tool that has a grammar."""
    grammar = {"syntax": syntax, "definition": definition}
    if api is RESPONSES:
        return responses(tools=[block("custom", name="p", format=block("grammar", **grammar))])
    form = block("grammar", grammar=grammar)
    return chat(tools=[block("custom", custom={"name": "patch", "format": form})])


@pytest.mark.parametrize(
    ("api", "place"),
    [
        (CHAT, "tools[0].custom.format.grammar.definition"),
        (RESPONSES, "tools[0].format.definition"),
    ],
)
async def test_invalid_grammar_is_refused(api: Api, place: str) -> None:
    pytest.importorskip("llguidance")
    async with serving() as served, ClientSession(served.url) as http:
        for syntax, definition, reason in BAD:
            async with http.post(api.path, json=with_grammar(api, syntax, definition)) as response:
                error = (await response.json())["error"]
                assert (response.status, error["type"]) == (400, "invalid_request_error")
                assert (error["param"], error["code"]) == (place, "invalid_value")
                assert error["message"].startswith(f"Invalid value for '{place}': ")
                assert reason in error["message"]
                assert "\n" not in error["message"]
        for syntax, definition in GOOD:
            async with http.post(api.path, json=with_grammar(api, syntax, definition)) as response:
                assert response.status == 200


async def named(gateway: FakeGateway, api: Api, body: Json) -> tuple[str | None, list[Any]]:
    """What a header and the log name as not enforced."""
    async with serving(gateway) as served, ClientSession(served.url) as http:
        async with http.post(api.path, json=body) as response:
            assert response.status == 200, await response.text()
            await response.read()
        logged = [line["not_enforced"] for line in served.lines if "not_enforced" in line]
        return response.headers.get("x-turnwire-not-enforced"), logged


@pytest.mark.parametrize(
    ("features", "family", "enforced"),
    [
        (["guided"], "hermes", False),
        (["guided", "grammar"], "hermes", True),
        (["guided", "grammar"], "pythonic", False),
    ],
)
async def test_unenforced_grammar_is_named(
    features: list[str], family: str, enforced: bool
) -> None:
    gateway = FakeGateway(cards=[replace(CARD, features=features, family=family)])
    answer = {"format": block("json_schema", schema=SCHEMA)}
    body = messages(tools=[tool(strict=True)], output_config=answer)
    header, logged = await named(gateway, MESSAGES, body)
    assert header == (None if enforced else "format,strict")
    assert enforced or logged[0] == ["format", "strict"]
    plain = messages(tools=[tool(strict=False)])
    assert (await named(gateway, MESSAGES, plain))[0] is None


BUDGETS: list[tuple[Api, Json, bool]] = [
    (MESSAGES, {"thinking": block("enabled", budget_tokens=1024)}, True),
    (MESSAGES, {"thinking": block("adaptive")}, False),
    (CHAT, {"thinking_budget": 64}, True),
    (CHAT, {"thinking": False, "thinking_budget": 64}, False),
    (CHAT, {"thinking_budget": 0}, False),
]


async def test_thinking_budget_is_named_as_not_enforced(cases: Cases) -> None:
    gateway = FakeGateway(cards=[replace(CARD, features=["guided", "grammar"], family="hermes")])
    for api, fields, unenforced in BUDGETS:
        with cases.case(api=api.name, fields=fields):
            header, logged = await named(gateway, api, api.body(**fields))
            assert header == ("thinking_budget" if unenforced else None)
            assert bool(logged) == unenforced
