"""Our own OpenAPI document: it says what is served, and what is served does what it says (schemathesis)."""

import asyncio
from collections.abc import Iterator
from typing import Any

import hypothesis
import msgspec
import pytest
from aiohttp import ClientSession, web
from frontend_fakes import MODEL, FakeGateway, Served, Step, call, finish, reasoning, serving, text
from prometheus_client import CollectorRegistry
from structlog import get_logger

from services.frontend.app import make_app
from services.frontend.openapi import answers
from services.frontend.openapi.document import REASONS, document
from services.frontend.openapi.operations import OPERATIONS
from services.frontend.openapi.schemas import Schemas
from services.frontend.routes.openapi import served_by
from services.runtime.config import FrontendConfig

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed (extra `test`)")

EXAMPLES = 25
"""Of each operation and mode; the whole run takes about half a minute."""
EVERYTHING = document("1.0", lambda _method, _path: True)


def everything_said() -> list[Step]:
    return [
        [*reasoning(0, "so"), *text(1, "well"), *call(2, "look", '{"at": 1}', call_id="toolu_1"), finish(3)],
    ]


@pytest.fixture
def app() -> web.Application:
    return make_app(FrontendConfig(), FakeGateway(), CollectorRegistry(), get_logger())


def test_every_route_is_described_and_everything_described_is_a_route(app: web.Application) -> None:
    described = {(operation.method, operation.path) for operation in OPERATIONS}
    assert served_by(app.router) == described
    assert len(described) == len(OPERATIONS)


async def test_the_document_is_served_to_all_and_says_what_this_frontend_serves() -> None:
    async with serving(config=FrontendConfig(enable_anthropic_api=False)) as served, ClientSession(served.url) as http:
        response = await http.get("/openapi.json")
        told = await response.json()
    assert told["openapi"] == "3.1.0"
    assert "/v1/messages" not in told["paths"]
    assert "/v1/messages/count_tokens" not in told["paths"]
    assert set(told["paths"]["/v1/responses"]) == {"get", "post"}


def test_the_document_is_whole() -> None:
    names = EVERYTHING["components"]["schemas"]
    for reference in set(_references(EVERYTHING)):
        kind, _, name = reference.removeprefix("#/components/").partition("/")
        assert name in EVERYTHING["components"][kind]
    used = {name for reference in _references(EVERYTHING) for name in [reference.rpartition("/")[2]]}
    assert set(names) <= used
    assert {"MessagesBody", "ChatBody", "CompletionsBody", "ResponsesBody"} <= set(names)
    for schema in names.values():
        assert schema["description"]
    ids = [operation["operationId"] for methods in EVERYTHING["paths"].values() for operation in methods.values()]
    assert len(set(ids)) == len(ids) == len(OPERATIONS)
    statuses = {s for methods in EVERYTHING["paths"].values() for o in methods.values() for s in o["responses"]}
    assert statuses <= {"101", "200", *map(str, REASONS)}


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


class Inner(msgspec.Struct, tag="inner"):
    """One."""

    size: int
    next: "Inner | None" = None


class Outer(msgspec.Struct):
    """First line
    goes on.

    And is over.
    """

    inner: Inner
    raw: msgspec.Raw = msgspec.Raw(b"null")
    flag: bool = True


def test_schemas_of_types() -> None:
    schemas = Schemas()
    assert schemas.of(list[Outer]) == {"type": "array", "items": {"$ref": "#/components/schemas/Outer"}}
    assert schemas.components["Outer"] == {
        "type": "object",
        "description": "First line goes on.",
        "properties": {
            "inner": {"$ref": "#/components/schemas/Inner"},
            "raw": {},
            "flag": {"type": "boolean", "default": True},
        },
        "required": ["inner"],
    }
    assert schemas.components["Inner"]["properties"] == {
        "type": {"const": "inner"},
        "size": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/components/schemas/Inner"}, {"type": "null"}]},
    }
    assert schemas.components["Inner"]["required"] == ["type", "size"]


ASK: dict[str, Any] = {"model": MODEL, "max_tokens": 99}
HI = [{"role": "user", "content": "hi"}]
ANSWERS: list[tuple[str, str, dict[str, Any] | None, Any]] = [
    ("POST", "/v1/messages", {**ASK, "messages": HI}, answers.MessageAnswer),
    ("POST", "/v1/messages/count_tokens", {"model": MODEL, "messages": HI}, answers.MessageTokens),
    ("POST", "/v1/chat/completions", {**ASK, "messages": HI}, answers.ChatAnswer),
    ("POST", "/v1/completions", {**ASK, "prompt": "x"}, answers.CompletionAnswer),
    ("POST", "/v1/responses", {"model": MODEL, "input": "hi"}, answers.ResponseAnswer),
    ("POST", "/v1/responses/compact", {"model": MODEL, "input": "hi"}, answers.ResponseCompaction),
    ("POST", "/v1/responses/input_tokens", {"model": MODEL, "input": "hi"}, answers.ResponseTokens),
    ("GET", "/v1/models", None, answers.ModelPage),
    ("GET", f"/v1/models/{MODEL}", None, answers.ModelAnswer),
    ("GET", "/codex/models.json", None, answers.CodexCatalogue),
    ("POST", "/v1/tokenize", {"model": MODEL, "prompt": "x y"}, answers.TokenIds),
    ("POST", "/v1/detokenize", {"model": MODEL, "tokens": [1]}, answers.PlainPrompt),
    ("GET", "/live", None, answers.Probe),
    ("GET", "/health", None, answers.Health),
    ("GET", "/version", None, answers.Version),
    ("GET", "/", None, answers.Hello),
]


@pytest.mark.parametrize(("method", "path", "body", "kind"), ANSWERS, ids=[f"{m} {p}" for m, p, _, _ in ANSWERS])
async def test_answers_are_of_their_types(method: str, path: str, body: Any, kind: Any) -> None:
    async with serving(FakeGateway(everything_said)) as served, ClientSession(served.url) as http:
        response = await http.request(method, path, json=body)
        assert response.status == 200
        msgspec.json.decode(await response.read(), type=kind)


async def test_a_compaction_decodes_whatever_its_request_says_of_decoding() -> None:
    """Found by schemathesis on a running stack: `generate: false` left no summary, which was a 500."""
    ask = {"model": MODEL, "input": "hi", "generate": False, "stop": ["a"], "stop_token_ids": [1]}
    async with serving(FakeGateway(everything_said)) as served, ClientSession(served.url) as http:
        assert (await http.post("/v1/responses/compact", json=ask)).status == 200
    sampling = served.gateway.turns[0].conversation.sampling
    assert (sampling.max_tokens, sampling.stop, sampling.stop_token_ids) == (None, [], [])


def operations() -> list[Any]:
    schema = schemathesis.openapi.from_dict(EVERYTHING)
    return [found.ok() for found in schema.get_all_operations()]


@pytest.mark.parametrize("operation", operations(), ids=lambda operation: operation.label)
async def test_nothing_generated_from_the_document_finds_a_500_or_an_undocumented_answer(operation: Any) -> None:
    """Status, content type, schema and headers of every answer, to bodies that the document allows and to others."""
    gateway = FakeGateway(everything_said)
    gateway.any_model = True
    async with serving(gateway) as served:
        await asyncio.to_thread(_try, operation, served)
    assert not [line for line in served.lines if line["log_level"] == "error"]


def _try(operation: Any, served: Served) -> None:
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_headers_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_headers_conformance,
        response_schema_conformance,
    ]
    for body in _examples(operation):
        answer = operation.Case(body=body, media_type="application/json").call_and_validate(
            base_url=served.url, checks=checks, timeout=20
        )
        assert answer.status_code == 200
    for mode in _modes(operation):

        @hypothesis.settings(
            max_examples=EXAMPLES,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def run(case: Any) -> None:
            case.call_and_validate(base_url=served.url, checks=checks, timeout=20)

        run()


def _examples(operation: Any) -> list[Any]:
    raw = EVERYTHING["paths"][operation.path][operation.method.lower()]
    content = raw.get("requestBody", {}).get("content", {}).get("application/json", {})
    return [{**example["value"], **more} for example in content.get("examples", {}).values() for more in _forms(raw)]


def _forms(raw: Any) -> list[dict[str, Any]]:
    streams = "text/event-stream" in raw["responses"]["200"]["content"]
    return [{}, {"stream": True}] if streams else [{}]


def _modes(operation: Any) -> list[Any]:
    modes = [schemathesis.GenerationMode.POSITIVE]
    if operation.body or operation.query:  # any text is a path parameter
        modes.append(schemathesis.GenerationMode.NEGATIVE)
    return modes
