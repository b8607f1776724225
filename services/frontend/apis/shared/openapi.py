"""Makes the OpenAPI 3.1 document of a set of APIs. Schemas come from msgspec; this module adds
paths, answers, errors."""

import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from itertools import chain
from typing import Any, TypeAlias

import msgspec

from services.frontend.apis.shared.api import Api, Operation
from services.frontend.apis.shared.decode import tags_of
from services.frontend.http.errors import ErrorFormat

REASONS = {
    304: "The client has it (`If-None-Match`)",
    400: "The request is malformed, or cannot be served",
    401: "No key, a wrong key, or no client certificate",
    403: "The key may not use this model, or the page's origin or the `Host` is not allowed",
    404: "There is no such model or object",
    408: "The body did not arrive in time",
    413: "The body, or its decoded form, is too large",
    426: "This path serves WebSockets only, or accepts no WebSocket now",
    429: "A limit of the key is exceeded; `retry-after` names the time to wait",
    500: "The engine failed",
    502: "A worker failed; the message names it and the reason",
    503: "No process serves this model now, or all are busy",
    504: "The request took longer than allowed",
    529: "All processes are busy",
}
Schema: TypeAlias = dict[str, Any]
"""A JSON schema, or another object of the document."""
_REF = "#/components/schemas/"
_JSON = "application/json"
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_REQUEST_ID = {
    "description": "The request's id, as in the log.",
    "required": True,
    "schema": {"type": "string", "pattern": "^req_[0-9a-f]{24}$"},
}


def document(version: str, apis: Sequence[Api]) -> Schema:
    """The document of a frontend of this version that serves these APIs."""
    components: Schema = {}
    paths: dict[str, Schema] = {}
    for api in apis:
        bodies = _schemas([operation.body for operation in api.operations], api.name, components)
        events = [
            operation.events
            for operation in api.operations
            if not isinstance(operation.events, str)
        ]
        lines = chain.from_iterable(operation.lines for operation in api.operations)
        kinds = [*(operation.answer for operation in api.operations), *lines, *events, *api.parts]
        contents = _schemas(kinds, api.name, components, answers=True)
        error_schemas = _schemas([api.errors.schema], "", components, answers=True)
        errors = {_JSON: {"schema": error_schemas[api.errors.schema]}}
        for operation in api.operations:
            answers = _answers(operation, contents, api.errors, errors)
            described = _operation(operation, api, bodies.get(operation.body), answers)
            paths.setdefault(operation.path, {})[operation.method] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Turnwire",
            "version": version,
            "description": "Anthropic Messages, OpenAI Responses, Chat Completions and "
            "Completions over one pipeline.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{}, {"bearer": []}, {"x-api-key": []}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": _SECURITY,
            "headers": {"request-id": _REQUEST_ID},
        },
    }


def _schemas(
    types: Iterable[Any], prefix: str, components: Schema, *, answers: bool = False
) -> dict[Any, Schema]:
    """Returns the schema of each type, and adds those of Structs to `components`, under `prefix`
    and the type's name. A type that has the prefix already (`ChatBody`) gets no second one.

    `answers`: the types are of answers, in which members with a default are always present.
    """
    kinds = list(dict.fromkeys(kind for kind in types if kind))
    described = msgspec.json.schema_components(kinds, ref_template=f"{_REF}{prefix}{{name}}")
    schemas, structs = _without_second_prefix(described, prefix)
    for class_name, schema in structs.items():
        name = class_name.removeprefix(prefix) or class_name
        if "title" in schema:
            schema["title"] = name
        if "description" in schema:
            schema["description"] = " ".join(schema["description"].split())
        if answers and "properties" in schema:
            required = schema["required"]
            schema["required"] = [
                key
                for key, member in schema["properties"].items()
                if key in required or "default" in member
            ]
        components[prefix + name] = schema
    return dict(zip(kinds, schemas, strict=True))


def _without_second_prefix(
    described: tuple[tuple[Schema, ...], dict[str, Schema]], prefix: str
) -> tuple[list[Schema], dict[str, Schema]]:
    """Makes references to `ChatBody` of those to `ChatChatBody`."""
    encoded = msgspec.json.encode(described).decode()
    single = re.sub(rf"{_REF}{prefix}{prefix}(?=\w)", f"{_REF}{prefix}", encoded)
    return msgspec.json.decode(single, type=tuple[list[Schema], dict[str, Schema]])


def _operation(
    operation: Operation, api: Api, body: Schema | None, answers: dict[int, Schema]
) -> Schema:
    path = operation.path.replace("{id}", "one")
    words = [word for word in path.replace(".", "_").split("/") if word]
    described: Schema = {
        "operationId": "_".join([operation.method, *words]),
        "summary": operation.summary,
        "tags": [api.title],
        "responses": {str(status): answer for status, answer in sorted(answers.items())},
    }
    parameters = _parameters(operation)
    if parameters:
        described["parameters"] = parameters
    if body is not None:
        described["requestBody"] = _request_body(operation, body)
    if operation.public:
        described["security"] = []
    return described


def _parameters(operation: Operation) -> list[Schema]:
    """The parameters of the query string, then those of the path."""
    parameters: list[Schema] = [
        {
            "name": query.name,
            "in": "query",
            "description": query.description,
            "schema": query.schema,
        }
        for query in operation.query
    ]
    for name in re.findall(r"{(\w+)}", operation.path):
        parameters.append(
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": operation.id if name == "id" else f"Its {name}.",
                "schema": {"type": "string", "minLength": 1},
            }
        )
    return parameters


def _request_body(operation: Operation, body: Schema) -> Schema:
    schema = body
    if operation.required:
        schema = {"allOf": [body, {"required": list(operation.required)}]}
    content = {"schema": schema, "examples": {"first": {"value": operation.example}}}
    return {"required": True, "content": {_JSON: content}}


def _answers(
    operation: Operation,
    contents: Mapping[Any, Schema],
    format: ErrorFormat,
    errors: Schema,
) -> dict[int, Schema]:
    """`contents`: the schema of each type of an answer or of events."""
    content = _content(operation, contents)
    answers = {200: _answer("Success", content)}
    if operation.upgrade:
        answers = {
            101: _answer("The events of responses follow, one a frame"),
            426: _answer(REASONS[426], errors),
        }
    if operation.cached:
        answers[304] = _answer(REASONS[304])
    if operation.unavailable:
        answers[503] = _answer("Failure", content)
    if not operation.public:
        for status in format.statuses:
            answers[status] = _answer(REASONS.get(status) or HTTPStatus(status).phrase, errors)
    return answers


def _content(operation: Operation, contents: Mapping[Any, Schema]) -> Schema:
    """The schema of an answer in each media type that it may have."""
    content: Schema = {}
    if operation.text:
        for media_type in ("text/plain", "application/openmetrics-text"):
            content[media_type] = {"schema": {"type": "string"}}
    elif operation.binary:
        content["application/octet-stream"] = {}
    elif operation.lines:
        lines = [contents[kind] for kind in operation.lines]
        content["application/jsonl"] = {"schema": {"anyOf": lines}}
    elif operation.answer in contents:
        content[_JSON] = {"schema": contents[operation.answer]}
    if operation.events:
        content["text/event-stream"] = {"schema": _event(operation.events, contents)}
    return content


def _event(events: Any, contents: Mapping[Any, Schema]) -> Schema:
    names = events
    data: Schema = {"type": "string"}
    if not isinstance(events, str):
        names = f"^({'|'.join(map(re.escape, tags_of(events)))}|message)$"
        text = {
            "type": "string",
            "contentMediaType": _JSON,
            "contentSchema": contents[events],
        }
        data = {"anyOf": [text, {"const": "[DONE]"}]}
    return {
        "type": "object",
        "description": "One of the stream's server-sent events; `data` is JSON, or `[DONE]` at "
        "the end of some APIs.",
        "properties": {"event": {"type": "string", "pattern": names}, "data": data},
        "required": ["data"],
    }


def _answer(description: str, content: Schema | None = None) -> Schema:
    answer: Schema = {
        "description": description,
        "headers": {"request-id": {"$ref": "#/components/headers/request-id"}},
    }
    if content:
        answer["content"] = content
    return answer
