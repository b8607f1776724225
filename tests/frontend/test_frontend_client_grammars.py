"""Tests that grammars of freeform tools are checked, and that a header names what is not
enforced."""

import json

import pytest
from msgspec.structs import replace

from tests.kit.bodies import CHAT, MESSAGES, RESPONSES, SCHEMA, Api, Json, block, tool
from tests.kit.every import Cases
from tests.kit.frontend import CARD, FakeGateway, serving

GRAMMARS = [
    ("lark", 'start: x y\nx: "a"', "unknown name"),
    ("regex", "a(b", "unclosed group"),
    ("regex", "^a{2}$", None),
]
"""Syntax, definition, and the reason of a refusal."""


def with_grammar(api: Api, syntax: str, definition: str) -> Json:
    """A request with a freeform tool that has a grammar."""
    grammar = {"syntax": syntax, "definition": definition}
    if api is RESPONSES:
        return api.body(tools=[block("custom", name="p", format=block("grammar", **grammar))])
    form = block("grammar", grammar=grammar)
    return api.body(tools=[block("custom", custom={"name": "patch", "format": form})])


async def test_invalid_grammar_is_refused(cases: Cases) -> None:
    pytest.importorskip("llguidance")
    places = (
        (CHAT, "tools[0].custom.format.grammar.definition"),
        (RESPONSES, "tools[0].format.definition"),
    )
    async with serving() as served:
        for api, place in places:
            for syntax, definition, reason in GRAMMARS:
                with cases.case(api.name, definition=definition):
                    reply = await served.post(api.path, with_grammar(api, syntax, definition))
                    if reason is None:
                        assert reply.status == 200
                        continue
                    error = reply.json["error"]
                    assert (reply.status, error["param"]) == (400, place)
                    assert error["message"].startswith(f"Invalid value for '{place}': ")
                    assert reason in error["message"]


def test_chain_of_rules_that_each_name_the_next_one_is_refused() -> None:
    """At some thousand of them llguidance overflows the stack, which ends the process."""
    rules = "".join(f"r{j}: r{j + 1}\n" for j in range(5000))
    CHAT.refused(json.dumps(with_grammar(CHAT, "lark", f'start: r0\n{rules}r5000: "x"')).encode())


STRICT: Json = {
    "tools": [tool(strict=True)],
    "output_config": {"format": block("json_schema", schema=SCHEMA)},
}
GRAMMAR = ["guided", "grammar"]
UNENFORCED: list[tuple[Api, list[str], str, Json, str | None]] = [
    (MESSAGES, ["guided"], "hermes", STRICT, "format,strict"),
    (MESSAGES, GRAMMAR, "hermes", STRICT, None),
    (MESSAGES, GRAMMAR, "pythonic", STRICT, None),
    (MESSAGES, GRAMMAR, "beam", STRICT, "format,strict"),
    (CHAT, GRAMMAR, "hermes", {"thinking_budget": 64}, "thinking_budget"),
    (CHAT, GRAMMAR, "hermes", {"thinking_budget": 0}, None),
]
"""The features and the family of a model, fields, and the header."""


async def test_unenforced_constraints_are_named(cases: Cases) -> None:
    gateway = FakeGateway()
    async with serving(gateway) as served:
        for api, features, family, fields, named in UNENFORCED:
            with cases.case(api.name, fields=fields):
                gateway.cards = [replace(CARD, features=features, family=family)]
                reply = await served.post(api.path, api.body(**fields))
                assert reply.status == 200
                assert reply.headers.get("x-turnwire-not-enforced") == named
