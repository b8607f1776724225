"""Tests the names of fields in errors: those that decide the answer of another API are refused by
name, and an error of the pipeline names a field of the client's own API."""

import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from schemas.errors import Invalid
from services.frontend.apis.chat.wire import ChatBody
from services.frontend.apis.completions.wire import CompletionsBody
from services.frontend.apis.messages.wire import MessagesBody
from services.frontend.apis.responses.wire import ResponsesBody
from services.worker.features import SAMPLING_FIELDS
from tests.kit.bodies import chat, completions, messages, responses
from tests.kit.every import Cases
from tests.kit.frontend import FakeGateway, serving

BODIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/messages": (MessagesBody, messages()),
    "/v1/chat/completions": (ChatBody, chat()),
    "/v1/completions": (CompletionsBody, completions()),
    "/v1/responses": (ResponsesBody, responses()),
}
"""Types and bodies of requests."""
DIFFERENCES = Path(__file__).parents[2] / "docs" / "differences.md"


def declared() -> list[str]:
    """The fields that the docs name as refused where they belong to another API."""
    pattern = r"another API has and that decide its answer[^(]*\(([^)]*)\)"
    found = re.search(pattern, DIFFERENCES.read_text())
    assert found is not None
    return re.findall(r"`(\w+)`", found[1])


@pytest.mark.parametrize("path", BODIES)
async def test_field_of_another_api_is_refused_by_its_name(path: str, cases: Cases) -> None:
    kind, body = BODIES[path]
    async with serving() as served, ClientSession(served.url) as http:
        for name in set(declared()) - set(kind.__struct_fields__):
            for value in (None, "a"):
                with cases.case(name, value=value):
                    async with http.post(path, json=body | {name: value}) as reply:
                        answer = await reply.json()
                    assert reply.status == (200 if value is None else 400)
                    if value is not None:
                        assert re.search(rf"(^|\W){name}\b", answer["error"]["message"])
                        assert answer["error"].get("param", name) == name


OF_TURNS = (*SAMPLING_FIELDS, "messages", "prompt", "format", "top_logprobs", "cache_salt")
OF_CONVERSATIONS = ("messages", "tools", "tool_choice", "format", "chat_template_kwargs")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_error_of_the_pipeline_names_a_field_of_the_own_api(path: str, cases: Cases) -> None:
    kind, body = BODIES[path]
    gateway = FakeGateway()
    async with serving(gateway) as served, ClientSession(served.url) as http:
        for name in OF_TURNS if kind is CompletionsBody else (*OF_TURNS, *OF_CONVERSATIONS):
            gateway.refusal = Invalid("no", param=name)
            with cases.case(name):
                async with http.post(path, json=body) as reply:
                    error = (await reply.json())["error"]
                assert reply.status == 400
                named = error["param"]
                assert named is None or named.partition(".")[0] in kind.__struct_fields__
