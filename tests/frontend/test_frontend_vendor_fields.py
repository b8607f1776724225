"""Tests that each field of the SDKs' request types is in a table, which says what a request with it
gets.

A field that a new version of an SDK adds or removes fails `test_tables_have_every_field`. What
vendors refuse is in the `CASES` of the APIs: each is refused here, noted in a header, or declared
in the docs.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin

import pytest
from aiohttp import ClientSession
from anthropic.types.beta.beta_content_block_param import BetaContentBlockParam
from anthropic.types.beta.beta_tool_union_param import BetaToolUnionParam
from anthropic.types.beta.message_create_params import (
    MessageCreateParamsStreaming as BetaMessageCreateParamsStreaming,
)
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from typing_extensions import get_type_hints, is_typeddict

from tests.frontend.chat import chat_cases
from tests.frontend.chat.chat_cases import chat
from tests.frontend.messages import messages_cases
from tests.frontend.messages.messages_cases import CALL, TOOL, messages
from tests.frontend.responses import responses_cases
from tests.frontend.responses.responses_cases import responses
from tests.frontend.responses.responses_samples import Sampler
from tests.frontend.vendor_cases import USER, Json
from tests.frontend.vendor_tables import ACCEPTED, WHOLE
from tests.kit.frontend import MODEL, serving

ROOTS: dict[str, tuple[Any, ...]] = {
    "messages": (MessageCreateParamsStreaming, BetaMessageCreateParamsStreaming),
    "chat": (CompletionCreateParamsStreaming,),
    "responses": (ResponseCreateParamsStreaming,),
}
PATHS = {"messages": "/v1/messages", "chat": "/v1/chat/completions", "responses": "/v1/responses"}
CASES = {
    "messages": messages_cases.CASES,
    "chat": chat_cases.CASES,
    "responses": responses_cases.CASES,
}
PAGES = ("differences", "messages", "chat", "responses")
DOCS = " ".join(
    " ".join(
        (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text(encoding="utf-8").split()
    )
    for page in PAGES
)
Fields: TypeAlias = dict[str, dict[str, Any]]


def name_of(hint: Any) -> str:
    """The name of a type in the tables: types of the beta are those of the API with further
    fields."""
    return str(hint.__name__).removeprefix("Beta")


def fields_of(hint: Any, found: Fields, whole: Mapping[str, str]) -> Fields:
    """Adds the fields of all types that a type contains, by the name of the type, except inside
    types of `whole`."""
    for inner in parts_of(hint):
        if not is_typeddict(inner):
            fields_of(inner, found, whole)
            continue
        name, hints = name_of(inner), get_type_hints(inner, include_extras=True)
        new = {
            field: each
            for field, each in hints.items()
            if repr(each) not in map(repr, found.get(name, {}).values())
        }
        known = found.setdefault(name, {}).keys() >= hints.keys() and not new
        found[name] |= hints
        if name not in whole and not known:
            for each in hints.values():
                fields_of(each, found, whole)
    return found


def parts_of(hint: Any) -> Iterator[Any]:
    """The type, or the types inside a union, a list or a dictionary."""
    if is_typeddict(hint):
        yield hint
    elif get_origin(hint) is not Literal:
        for argument in get_args(hint):
            yield from parts_of(argument)


@pytest.mark.parametrize("api", ROOTS)
def test_tables_have_every_field(api: str) -> None:
    found: Fields = {}
    for root in ROOTS[api]:
        fields_of(root, found, WHOLE[api])
    tables: dict[str, set[str]] = {
        name: set(fields.split()) for name, fields in ACCEPTED[api].items()
    }
    remarkable: dict[str, set[str]] = {}
    for case in CASES[api]:
        name, _, field = case.field.partition(".")
        if name:
            remarkable.setdefault(name, set()).add(field)
    for name in tables.keys() & remarkable.keys():
        assert not tables[name] & remarkable[name], name
    expected = {
        name: set() if name in WHOLE[api] else tables.get(name, set()) | remarkable.get(name, set())
        for name in {*tables, *remarkable, *WHOLE[api]}
    }
    actual = {name: set() if name in WHOLE[api] else set(fields) for name, fields in found.items()}
    differences = {
        name: actual.get(name, set()) ^ expected.get(name, set()) for name in {*actual, *expected}
    }
    assert {name: fields for name, fields in differences.items() if fields} == {}
    assert WHOLE[api].keys() <= actual.keys()


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    async with serving() as served, ClientSession(served.url) as session:
        yield session


async def answered(http: ClientSession, api: str, body: Json) -> tuple[int, Json, str]:
    """Status, document, and what the headers name as left out or not enforced."""
    body = {name: value for name, value in {"model": MODEL, **body}.items() if value is not None}
    async with http.post(PATHS[api], json=body) as reply:
        names = [
            reply.headers.get(f"x-turnwire-{name}", "")
            for name in ("dropped-tools", "not-enforced")
        ]
        return reply.status, await reply.json(), ",".join(names)


@pytest.mark.parametrize("api", CASES)
async def test_what_vendors_refuse_is_refused_noted_or_declared(
    http: ClientSession, api: str
) -> None:
    wrong = []
    for number, case in enumerate(CASES[api]):
        status, document, notes = await answered(http, api, case.body)
        error = document.get("error") or {}
        told = {
            "refused": status == 400
            and case.text in f"{error.get('param')} {error.get('message')}",
            "noted": status == 200 and case.text in notes,
            "declared": status == 200 and case.text in DOCS,
        }
        if not told[case.outcome]:
            wrong.append(
                f"{number}: {case.field} {case.outcome} {case.text!r}: {status} {error} {notes}"
            )
    assert not wrong, "\n".join(wrong)


def samples(union: Any) -> Iterator[tuple[str, Json]]:
    """A value of each type of a union, with every field set, by the kind of its treatment."""
    for hint in get_args(union):
        if is_typeddict(hint):
            yield WHOLE["messages"].get(name_of(hint), "accepted"), Sampler().of(hint)[0]


async def test_tools_of_messages_are_treated_as_the_table_says(http: ClientSession) -> None:
    for kind, sample in samples(BetaToolUnionParam):
        status, _, notes = await answered(http, "messages", messages(tools=[TOOL, sample]))
        noted = sample["type"] in notes
        assert (kind, status, noted) in [
            ("accepted", 200, False),
            ("noted", 200, True),
            ("refused", 400, False),
        ], sample


async def test_blocks_of_messages_are_treated_as_the_table_says(http: ClientSession) -> None:
    refused = set()
    for kind, sample in samples(BetaContentBlockParam):
        call = CALL | {"id": sample.get("tool_use_id", CALL["id"])}
        statuses = set()
        for role in ("user", "assistant", "system"):
            history = [
                USER,
                {"role": "assistant", "content": [call]},
                {"role": role, "content": [sample]},
                USER,
            ]
            statuses.add((await answered(http, "messages", messages(messages=history)))[0])
        assert kind in ("accepted", "text")
        refused |= set() if 200 in statuses else {sample["type"]}
    assert refused == {"container_upload"}


@pytest.mark.parametrize("api", CASES)
async def test_plain_request_of_the_cases_is_accepted(http: ClientSession, api: str) -> None:
    plain = {"messages": messages(), "chat": chat(), "responses": responses()}[api]
    status, _, notes = await answered(http, api, plain)
    assert (status, notes) == (200, ",")
