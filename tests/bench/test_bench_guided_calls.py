"""How the benchmark of guided calls judges an answer."""

import json
from typing import Any

import jsonschema
import pytest

from bench.call_tools import SCHEMAS, TOOLS, arguments_for
from bench.guided_calls import APIS, request_of, verdict
from tests.kit.every import for_each

VALID = {"path": "a", "query": "b"}


def answer(api: str, name: str, arguments: str) -> dict[str, Any]:
    """An answer with one call."""
    if api == "chat":
        function = {"name": name, "arguments": arguments}
        return {"choices": [{"message": {"tool_calls": [{"function": function}]}}]}
    if api == "responses":
        call = {"type": "function_call", "name": name, "arguments": arguments}
        return {"output": [{"type": "message"}, call]}
    block = {"type": "tool_use", "name": name, "input": json.loads(arguments)}
    return {"content": [{"type": "text"}, block]}


@pytest.mark.parametrize("api", APIS)
def test_calls_are_judged_alike_in_each_api(api: str) -> None:
    name = TOOLS[0]["name"]
    assert set(SCHEMAS[name]["required"]) == set(VALID)
    assert verdict(api, answer(api, name, json.dumps(VALID))) == "valid"
    assert verdict(api, answer(api, "other", json.dumps(VALID))) == "unknown name"
    assert verdict(api, answer(api, name, '{"path": "a"}')) == "not of the schema"
    assert verdict(api, answer(api, name, '{"path": 7, "query": "b"}')) == "not of the schema"
    path, body = request_of(api, 3, 100)
    assert path.startswith("/v1/")
    assert len(body["tools"]) == 30


def test_unreadable_arguments_and_answers_without_a_call_are_not_valid() -> None:
    assert verdict("chat", answer("chat", TOOLS[0]["name"], '{"path"')) == "not JSON"
    assert verdict("messages", {"content": []}) == "no call"
    assert verdict("messages", {"content": [], "stop_reason": "max_tokens"}) == "cut"


@for_each(list(SCHEMAS))
def test_the_model_means_to_write_valid_calls(name: str) -> None:
    for number in range(20):
        jsonschema.validate(arguments_for(name, number), SCHEMAS[name])
