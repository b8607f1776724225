"""An error of the pipeline names a field of the client's own API, whatever the pipeline calls
it."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

import services
from schemas.errors import ContextOverflow, Invalid, TurnwireError
from services.frontend.apis.chat.wire import ChatBody
from services.frontend.apis.completions.wire import CompletionsBody
from services.frontend.apis.responses.wire import ResponsesBody
from services.frontend.apis.tokens import Ids, TokensText
from services.worker.engine import SAMPLING_FIELDS
from tests.kit.bodies import chat, completions, responses
from tests.kit.frontend import MODEL, FakeGateway, serving

PLACES = (
    "preprocessor",
    "worker/admission.py",
    "worker/engines",
    "templates",
    "tokenization",
    "frontend/turns",
)
ELSEWHERE = frozenset({"engine", "engine_args", "id", "tokens"})
"""Settings of processes that do not start, the ids that this server makes, and a field of one API
alone."""
APIS: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/chat/completions": (ChatBody, chat()),
    "/v1/completions": (CompletionsBody, completions()),
    "/v1/responses": (ResponsesBody, responses()),
    "/v1/responses/input_tokens": (ResponsesBody, responses()),
    "/v1/responses/compact": (ResponsesBody, responses()),
    "/v1/tokenize": (TokensText, chat()),
    "/v1/detokenize": (Ids, {"model": MODEL, "tokens": [1]}),
}
CONVERSATION = {"messages", "tools", "tool_choice", "format", "chat_template_kwargs"}
CAUSED = {"/v1/tokenize": CONVERSATION, "/v1/detokenize": {"tokens"}}
"""The names that an error of a request can have, where it is not any of them."""
NEVER = {"/v1/completions": {"tools", "tool_choice", "chat_template_kwargs"}}
"""Parts of a conversation that no request of the API has."""


def names() -> Iterator[str]:
    """The fields that errors of the pipeline name: those of its sources, and those that the sources
    compute."""
    yield from (
        *SAMPLING_FIELDS,
        "top_logprobs",
        "stop_token_ids",
        "prompt",
        "format",
        "cache_salt",
    )
    for place in PLACES:
        path = Path(services.__path__[0]) / place
        for file in [path] if path.suffix else path.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if (
                    isinstance(node, ast.keyword)
                    and node.arg == "param"
                    and isinstance(node.value, ast.Constant)
                ):
                    yield str(node.value.value)


NAMES = sorted({*names()} - ELSEWHERE)


class Refusing(FakeGateway):
    """Refuses everything."""

    async def refuse(self, *_: Any) -> Any:
        assert self.refusal is not None
        raise self.refusal

    count = tokenize = detokenize = refuse  # type: ignore[assignment]


def refusals(name: str) -> Iterator[TurnwireError]:
    yield Invalid("no", param=name)
    details = {"prompt_tokens": 9, "context_window": 8}
    yield ContextOverflow("too long", param=name, code="context_length_exceeded", details=details)
    yield ContextOverflow("too long", param=name)


def test_names_of_the_pipeline_are_found() -> None:
    some = "messages stop_sequences format prompt max_tokens min_tokens tools"
    assert {*some.split()} <= {*NAMES}


@pytest.mark.parametrize("path", APIS)
async def test_error_names_a_field_of_the_own_api(path: str) -> None:
    body, fields = APIS[path]
    own = {*body.__struct_fields__, *CAUSED.get(path, ())} - {"format"}
    gateway = Refusing()
    async with serving(gateway) as served, ClientSession(served.url) as http:
        for name in CAUSED.get(path, {*NAMES} - NEVER.get(path, set())):
            for gateway.refusal in refusals(name):
                async with http.post(path, json=fields) as reply:
                    error = (await reply.json())["error"]
                assert reply.status == 400, error
                assert error["param"] is None or error["param"].partition(".")[0] in own, (
                    name,
                    error,
                )
