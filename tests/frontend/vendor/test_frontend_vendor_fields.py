"""Tests that each field of the SDKs' request types is in a table, which says what a request with it
gets.

A field that a new version of an SDK adds or removes fails `test_tables_have_every_field`. What
vendors refuse is in the `CASES` of the APIs: each is refused here, noted in a header, or declared
in the docs.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin

import pytest
from aiohttp import ClientSession
from typing_extensions import get_type_hints, is_typeddict

from tests.frontend.responses.responses_samples import Sampler
from tests.frontend.vendor import chat_cases, completions_cases, messages_cases, responses_cases
from tests.frontend.vendor.case import PHRASES, Case
from tests.frontend.vendor.sdk_types import ACCEPTED, WHOLE
from tests.kit.bodies import APIS, MESSAGES, USER, Api, Json, assistant, message, tool, tool_use

CASES = {
    "messages": messages_cases.CASES,
    "chat": chat_cases.CASES,
    "completions": completions_cases.CASES,
    "responses": responses_cases.CASES,
}
PAGES = ("differences", "messages", "chat", "responses")
Fields: TypeAlias = dict[str, dict[str, Any]]


@pytest.fixture
def docs() -> str:
    """The text of the pages that declare differences, on one line."""
    folder = Path(__file__).parents[3] / "docs"
    texts = [(folder / f"{page}.md").read_text(encoding="utf-8") for page in PAGES]
    return " ".join(" ".join(text.split()) for text in texts)


@pytest.fixture
def roots() -> dict[str, tuple[Any, ...]]:
    """The types of whole requests in the SDKs."""
    from anthropic.types import message_create_params
    from anthropic.types.beta import message_create_params as beta
    from openai.types.chat import completion_create_params
    from openai.types.responses import response_create_params

    return {
        "messages": (
            message_create_params.MessageCreateParamsStreaming,
            beta.MessageCreateParamsStreaming,
        ),
        "chat": (completion_create_params.CompletionCreateParamsStreaming,),
        "responses": (response_create_params.ResponseCreateParamsStreaming,),
    }


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


@pytest.mark.parametrize("api", ["messages", "chat", "responses"])
def test_tables_have_every_field(api: str, roots: dict[str, tuple[Any, ...]]) -> None:
    found: Fields = {}
    for root in roots[api]:
        fields_of(root, found, WHOLE[api])
    tables = {name: set(fields.split()) for name, fields in ACCEPTED[api].items()}
    remarkable = {
        name: {case.field for case in cases} for name, cases in CASES[api].items() if name
    }
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


async def answered(http: ClientSession, api: Api, body: Any) -> tuple[int, Json, str]:
    """Status, document, and what the headers name as left out or not enforced."""
    async with http.post(api.path, data=json.dumps(body).encode()) as reply:
        names = [
            reply.headers.get(f"x-turnwire-{name}", "")
            for name in ("dropped-tools", "not-enforced")
        ]
        return reply.status, await reply.json(), ",".join(names)


def is_as_told(api: Api, case: Case, body: Any, error: Json) -> bool:
    """Whether the error of a refused request is the one in its table."""
    said: str = error["message"]
    if api is MESSAGES:
        place = api.refused(body).param if case.at else ""
        beginning = case.text.removesuffix("...")
        whole = said == case.text if beginning == case.text else said.startswith(beginning)
        return whole and place == case.at
    if (error["param"], error["code"]) != (case.at, case.code):
        return False
    phrase = PHRASES.get(case.code or "", "").format(at=case.at)
    if case.text:
        return said == case.text or (said.startswith(phrase) and said.endswith(case.text))
    top = case.at.partition("[")[0].partition(".")[0]
    return said.startswith(phrase) and (top in said or case.code == "invalid_value")


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_what_vendors_refuse_is_refused_noted_or_declared(
    http: ClientSession, api: Api, docs: str
) -> None:
    wrong = []
    cases = [(name, *row) for name, cases in CASES[api.name].items() for row in cases.items()]
    assert len(cases) > 14
    for name, case, value in cases:
        body = value if case.wrap is None else case.wrap(value)
        status, document, notes = await answered(http, api, body)
        error = document.get("error") or {}
        right = {
            "refused": status == 400 and is_as_told(api, case, body, error),
            "noted": status == 200 and case.text in notes,
            "declared": status == 200 and case.text in docs,
            "accepted": (status, notes) == (200, ","),
        }
        if not right[case.outcome]:
            wrong.append(f"{name}: {case}: {body}: {status} {error} {notes}")
    assert not wrong, "\n".join(wrong)


def samples(union: Any) -> Iterator[tuple[str, Json]]:
    """A value of each type of a union, with every field set, by the kind of its treatment."""
    for hint in get_args(union):
        if is_typeddict(hint):
            yield WHOLE["messages"].get(name_of(hint), "accepted"), Sampler().of(hint)[0]


async def test_tools_of_messages_are_treated_as_the_table_says(http: ClientSession) -> None:
    from anthropic.types.beta.beta_tool_union_param import BetaToolUnionParam

    for kind, sample in samples(BetaToolUnionParam):
        body = MESSAGES.body(tools=[tool(), sample])
        status, _, notes = await answered(http, MESSAGES, body)
        noted = sample["type"] in notes
        assert (kind, status, noted) in [
            ("accepted", 200, False),
            ("noted", 200, True),
            ("refused", 400, False),
        ], sample


async def test_blocks_of_messages_are_treated_as_the_table_says(http: ClientSession) -> None:
    from anthropic.types.beta.beta_content_block_param import BetaContentBlockParam

    refused = set()
    for kind, sample in samples(BetaContentBlockParam):
        call = tool_use(sample.get("tool_use_id", "toolu_1"))
        statuses = set()
        for role in ("user", "assistant", "system"):
            body = MESSAGES.body(USER, assistant(call), message(role, sample), USER)
            statuses.add((await answered(http, MESSAGES, body))[0])
        assert kind in ("accepted", "text")
        refused |= set() if 200 in statuses else {sample["type"]}
    assert refused == {"container_upload"}


async def test_plain_request_of_each_api_is_accepted(http: ClientSession) -> None:
    for api in APIS:
        status, _, notes = await answered(http, api, api.body())
        assert (api.name, status, notes) == (api.name, 200, ",")
