"""Only `Admission` makes what the gateway takes, and it looks the model up once."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from schemas.control import ModelCard
from schemas.conversation import Conversation
from services.frontend.turns import interfaces
from services.frontend.turns.interfaces import Admitted
from tests.frontend.frontend_fakes import CARD, MODEL, FakeGateway, admission, serving
from tests.frontend.http.test_frontend_edge import KEY, guarded

MESSAGES = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
RESPONSES = {"model": MODEL, "input": "hi", "store": False}
ROUTES = [
    ("/v1/messages", MESSAGES),
    ("/v1/messages", MESSAGES | {"stream": True}),
    ("/v1/messages/count_tokens", MESSAGES),
    ("/v1/chat/completions", MESSAGES),
    ("/v1/completions", {"model": MODEL, "prompt": "hi"}),
    ("/v1/responses", RESPONSES),
    ("/v1/responses/input_tokens", RESPONSES),
    ("/tokenize", MESSAGES),
    ("/tokenize", {"model": MODEL, "prompt": "hi"}),
    ("/detokenize", {"model": MODEL, "tokens": [1]}),
]


class Counting(FakeGateway):
    def __init__(self) -> None:
        super().__init__()
        self.looked_up: list[str] = []

    def resolve(self, model: str, conversation: Conversation | None = None) -> ModelCard:
        self.looked_up.append(model)
        return super().resolve(model, conversation)


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_model_is_looked_up_once(path: str, body: dict[str, Any]) -> None:
    gateway = Counting()
    async with serving(gateway) as served, ClientSession(served.url) as http, http.post(path, json=body) as reply:
        await reply.read()
        assert reply.status == 200
    assert gateway.looked_up == [MODEL]


def test_nothing_else_makes_an_admitted_request() -> None:
    with pytest.raises(TypeError):
        Admitted(object(), CARD, Conversation(MODEL, []))


def test_only_admission_has_the_token() -> None:
    root = Path(interfaces.__file__).parents[3]
    sources = [path for folder in ("services", "turnwire_tools") for path in (root / folder).rglob("*.py")]
    users = {path.name for path in sources if "_ADMISSION" in path.read_text(encoding="utf-8")}
    assert users == {"admission.py", "interfaces.py"}


async def test_next_turn_of_an_answer_continues_it() -> None:
    admitted = await admission(FakeGateway()).admit(Conversation("claude-alias", []), None)
    assert admitted.conversation.model == MODEL
    assert admitted.conversation.client.alias == "claude-alias"
    following = admitted.with_conversation(Conversation(MODEL, []), continues=True)
    assert (following.card, following.continues) == (CARD, True)
    assert not admitted.continues


async def test_counted_prompt_has_the_tenant_of_its_caller(tmp_path: Path) -> None:
    gateway = FakeGateway()
    async with serving(gateway, guarded(tmp_path)) as served, ClientSession(served.url, headers=KEY) as http:
        for path, body in (("/v1/messages/count_tokens", MESSAGES), ("/v1/responses/input_tokens", RESPONSES)):
            reply = await http.post(path, json=body)
            assert reply.status == 200
    assert [conversation.client.tenant for conversation in gateway.counted] == ["alpha", "alpha"]


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_request_without_a_model_is_refused(path: str, body: dict[str, Any]) -> None:
    body = {name: value for name, value in body.items() if name != "model"}
    async with (
        serving(FakeGateway(cards=[CARD, ModelCard("acme/other")])) as served,
        ClientSession(served.url) as http,
        http.post(path, json=body) as reply,
    ):
        assert reply.status == 400
        assert (await reply.json())["error"].get("param", "model") == "model"
