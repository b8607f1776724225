"""The OpenAPI 3.1 document of a frontend. Pure."""

from collections.abc import Callable
from typing import Any

from services.frontend.dialects.messages.errors import KINDS
from services.frontend.dialects.shared_errors import OPENAI_KINDS
from services.frontend.openapi.answers import AnthropicError, OpenAIError, SharedError
from services.frontend.openapi.constraints import constrain
from services.frontend.openapi.examples import example
from services.frontend.openapi.operations import (
    JSON,
    METRICS,
    OPERATIONS,
    PLAIN,
    STREAM,
    Errors,
    Operation,
    Query,
)
from services.frontend.openapi.schemas import Schemas

REASONS = {
    304: "The client has it (`If-None-Match`)",
    400: "The request is not well formed, or asks for what cannot be done",
    401: "No key, a wrong one, or no client certificate",
    403: "The key may not use this model, or a page of this origin the server",
    404: "There is no such model or object",
    408: "The body did not arrive in time",
    413: "The body, or what it decodes to, is too large",
    426: "Only a WebSocket is served here, or none is wanted now",
    429: "Over a limit of the key; `retry-after` tells when to try again",
    500: "The engine failed",
    503: "Nothing serves this model at the moment, or everything is busy",
    504: "It took longer than allowed",
    529: "Everything is busy",
}
_SHAPES: dict[Errors, tuple[type, frozenset[int]]] = {
    "anthropic": (AnthropicError, frozenset({408, *(status for status, _ in KINDS.values())})),
    "openai": (OpenAIError, frozenset({408, *(status for status, _, _ in OPENAI_KINDS.values())})),
    "shared": (SharedError, frozenset({408, *(status for status, _ in KINDS.values())})),
}
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_REQUEST_ID = {
    "description": "The request's id, which the log has, too.",
    "required": True,
    "schema": {"type": "string", "pattern": "^req_[0-9a-f]{24}$"},
}


def document(version: str, serves: Callable[[str, str], bool]) -> dict[str, Any]:
    """The document of a frontend of this version. `serves(method, path)`: whether it serves an operation."""
    schemas = Schemas()
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        if serves(operation.method, operation.path):
            paths.setdefault(operation.path, {})[operation.method] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Turnwire",
            "version": version,
            "description": "Anthropic Messages, OpenAI Responses, Chat Completions and Completions over one pipeline.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{}, {"bearer": []}, {"x-api-key": []}],
        "paths": paths,
        "components": {
            "schemas": {name: constrain(name, schema) for name, schema in sorted(schemas.components.items())},
            "securitySchemes": _SECURITY,
            "headers": {"request-id": _REQUEST_ID},
        },
    }


def _operation(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": _id(operation),
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": {str(status): answer for status, answer in sorted(_answers(operation, schemas).items())},
    }
    parameters = [_in_query(query) for query in operation.query]
    if operation.path_parameter:
        schema = {"type": "string", "minLength": 1}
        named = {"name": "id", "in": "path", "required": True, "description": operation.path_parameter}
        parameters.append({**named, "schema": schema})
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        schema = schemas.of(operation.body)
        if operation.needs:
            schema = {"allOf": [schema, {"required": list(operation.needs)}]}
        content = {"schema": schema, "examples": {"first": {"value": example(operation.path)}}}
        described["requestBody"] = {"required": True, "content": {JSON: content}}
    if operation.open:
        described["security"] = []
    return described


def _answers(operation: Operation, schemas: Schemas) -> dict[int, dict[str, Any]]:
    if operation.upgrade:
        found = {101: _answer("The events of responses follow, one a frame", {})}
    else:
        found = {200: _answer("It is so", _content(operation, schemas))}
    if operation.cached:
        found[304] = _answer(REASONS[304], {})
    if operation.unavailable:
        found[503] = _answer("It is not so", _content(operation, schemas))
    if operation.errors != "none":
        shape, statuses = _SHAPES[operation.errors]
        content = {JSON: {"schema": schemas.of(shape)}}
        found |= {status: _answer(REASONS[status], content) for status in statuses}
        if operation.upgrade:
            found[426] = _answer(REASONS[426], content)
    return found


def _content(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    if operation.text:
        return {kind: {"schema": {"type": "string"}} for kind in (PLAIN, METRICS)}
    content: dict[str, Any] = {JSON: {"schema": schemas.of(operation.answer)}}
    if operation.events:
        content[STREAM] = {"schema": _event(operation.events)}
    return content


def _event(names: str) -> dict[str, Any]:
    return {
        "type": "object",
        "description": "One of the stream's server-sent events; `data` is JSON, or `[DONE]` where the API ends so.",
        "properties": {"event": {"type": "string", "pattern": names}, "data": {"type": "string"}},
        "required": ["data"],
    }


def _answer(description: str, content: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": description,
        "headers": {"request-id": {"$ref": "#/components/headers/request-id"}},
    }
    return {**answer, "content": content} if content else answer


def _in_query(query: Query) -> dict[str, Any]:
    return {"name": query.name, "in": "query", "description": query.description, "schema": query.schema}


def _id(operation: Operation) -> str:
    words = [word for word in operation.path.replace("{id}", "one").replace(".", "_").split("/") if word]
    return "_".join([operation.method, *words])
