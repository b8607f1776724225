"""The model of a request, and what it must be able to do."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.control import ModelCard
from schemas.conversation import Conversation, Message, ToolChoice
from schemas.errors import NotFound
from services.frontend.http.auth import anyone
from services.frontend.turns.compaction import request_summary
from tests.kit.bodies import (
    MODEL,
    block,
    chat,
    chat_tool,
    completions,
    function,
    messages,
    responses,
    tool,
)
from tests.kit.every import Cases
from tests.kit.frontend import CARD, KEY, FakeGateway, admission, guarded, serving
from tests.kit.waiting import eventually

RESPONSE = responses(store=False)
ROUTES = [
    ("/v1/messages/count_tokens", messages()),
    ("/v1/responses/input_tokens", RESPONSE),
    ("/v1/messages", messages()),
    ("/v1/messages", messages(stream=True)),
    ("/v1/chat/completions", chat()),
    ("/v1/completions", completions()),
    ("/v1/responses", RESPONSE),
    ("/tokenize", chat()),
    ("/tokenize", {"model": MODEL, "prompt": "hi"}),
    ("/detokenize", {"model": MODEL, "tokens": [1]}),
]
SUMMARIZED = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 1}}
COMPACTION = block("compaction", compact_threshold=1)
MANAGED = {"context_management": {"edits": [SUMMARIZED]}}
SEVERAL = [
    ("/v1/messages", messages(**MANAGED)),
    ("/v1/responses", responses(background=True)),
    ("/v1/responses", responses(store=False, context_management=[COMPACTION])),
    ("/v1/responses/compact", RESPONSE),
]
"""Requests that take several turns or counts."""
WITH_TOOLS = [
    ("/v1/messages", messages(tools=[tool()], **MANAGED)),
    ("/v1/chat/completions", chat(stream=True, n=2, tools=[chat_tool()])),
    ("/v1/responses", responses(store=False, tools=[function()], tool_choice="auto")),
    ("/v1/responses/compact", responses(store=False, tools=[function()])),
    ("/tokenize", chat(tools=[chat_tool()])),
]


@pytest.mark.parametrize(("path", "body"), SEVERAL)
async def test_all_turns_and_counts_of_a_request_have_the_model_of_its_session(
    path: str, body: dict[str, Any]
) -> None:
    """Two models have one alias. Without a session, that with the larger weight is chosen."""
    heavy = ModelCard("acme/heavy", aliases=["shared"], max_model_len=9, weight=9.0)
    sessions: list[str] = []

    def resolve(model: str, conversation: Conversation | None) -> ModelCard:
        if conversation is None:  # for the seal
            return heavy
        sessions.append(model)
        return CARD

    gateway = FakeGateway(cards=[CARD, heavy], on_resolve=resolve)
    async with serving(gateway) as served:
        assert (await served.post(path, body | {"model": "shared"})).status == 200
        await eventually(lambda: bool(gateway.turns))
    assert sessions == ["shared"]
    assert {turn.card.name for turn in gateway.turns} == {MODEL}
    assert {asked.model for asked in gateway.counted} <= {MODEL}


async def test_next_turn_of_an_answer_continues_it() -> None:
    admitted = await admission(FakeGateway()).admit(Conversation("claude-alias", []), anyone())
    assert admitted.conversation.model == MODEL
    assert admitted.conversation.client.alias == "claude-alias"
    following = admitted.next_turn([Message("user", [])], 7, ToolChoice("none"))
    assert (following.card, following.continues) == (CARD, True)
    assert following.conversation.client == admitted.conversation.client
    assert not admitted.continues
    summary = request_summary(Conversation(MODEL, []))
    admitted = await admission(FakeGateway()).admit(summary, anyone())
    assert not admitted.conversation.summary, "which other stages do not see"


async def test_request_without_a_model_is_refused_and_one_with_it_has_a_tenant(
    tmp_path: Path, cases: Cases
) -> None:
    gateway = FakeGateway(cards=[CARD, ModelCard("acme/other")])
    async with serving(gateway, guarded(tmp_path), headers=KEY) as served:
        for path, whole in ROUTES:
            assert (await served.post(path, whole)).status == 200
            body = {name: value for name, value in whole.items() if name != "model"}
            with cases.case(path=path, fields=[*body]):
                reply = await served.post(path, body)
                assert reply.status == 400
                assert reply.json["error"].get("param", "model") == "model"
    asked = [*gateway.conversations, *gateway.counted]
    assert [conversation.client.tenant for conversation in asked] == ["alpha"] * 7


async def test_unknown_model_is_refused_with_the_models_of_the_key(
    tmp_path: Path, cases: Cases
) -> None:
    cards = [ModelCard(name) for name in ("acme/small", "acme/large", "other")]
    async with serving(
        FakeGateway(cards=cards), guarded(tmp_path, "models=acme/*"), headers=KEY
    ) as served:
        for path, whole in ROUTES:
            with cases.case(path=path, fields=[*whole]):
                reply = await served.post(path, whole | {"model": "gpt\n" + "4" * 99})
                assert reply.status == (400 if "/responses" in path else 404)
                message = reply.json["error"]["message"]
                assert message.endswith(". Served models: acme/small, acme/large")
                assert served.lines[-1]["requested_model"] == "gpt" + "4" * 61


async def test_model_that_a_key_may_not_use_is_in_the_log(tmp_path: Path) -> None:
    name = "gpt\n" + "4" * 99
    config = guarded(tmp_path, "models=acme/*")
    async with serving(FakeGateway(cards=[ModelCard(name)]), config, headers=KEY) as served:
        assert (await served.post("/v1/messages", messages(model=name))).status == 403
        line = served.lines[-1]
    assert line["reason"] == "model"
    assert line["requested_model"] == "gpt" + "4" * 61


async def test_of_many_models_a_refusal_names_ten() -> None:
    cards = [ModelCard(f"m{number}") for number in range(12)]
    with pytest.raises(NotFound, match="m8, m9 and 2 more, which GET /v1/models lists"):
        admission(FakeGateway(cards=cards)).resolve("nobody", anyone())
    with pytest.raises(NotFound, match=r"^model: nobody$"):
        admission(FakeGateway(cards=[])).resolve("nobody", anyone())


async def test_tools_of_a_model_without_them_are_refused_everywhere(cases: Cases) -> None:
    async with serving(FakeGateway(cards=[replace(CARD, tools=False)])) as served:
        for path, body in WITH_TOOLS:
            with cases.case(path=path, fields=[*body]):
                reply = await served.post(path, body)
                assert reply.status == 400
                error = reply.json["error"]
                assert f"{MODEL} does not support tools" in error["message"]
                assert error.get("param", "tools") == "tools"
                without = body | {"tools": [], "tool_choice": None}
                assert (await served.post(path, without)).status == 200
    assert [asked.tools for asked in served.gateway.conversations if asked.tools] == []
