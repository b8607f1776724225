"""Only `Admission` makes what the gateway takes, and the model is looked up once for each
request."""

import ast
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from msgspec.structs import replace

from schemas.control import ModelCard
from schemas.conversation import (
    Call,
    Conversation,
    Message,
    Reasoning,
    Result,
    Text,
    Thinking,
    ToolChoice,
    ToolSpec,
)
from schemas.errors import Invalid
from services.frontend.http.auth import anyone
from services.frontend.turns import interfaces
from services.frontend.turns.compaction import request_summary
from services.frontend.turns.interfaces import Admitted, TurnSink
from services.templates.chat_template import ChatTemplate
from services.templates.messages import adapt
from services.templates.probe import probe
from services.templates.thinking import template_variables
from services.templates.tools import list_tools
from tests.frontend.http.test_frontend_edge import KEY, guarded
from tests.kit.frontend import CARD, MODEL, FakeGateway, FakeTurn, admission, serving
from tests.kit.waiting import eventually

QUESTION = {"role": "user", "content": "hi"}
MESSAGES = {"model": MODEL, "max_tokens": 9, "messages": [QUESTION]}
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


SUMMARY_TRIGGER = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 1}}
TOOL_TRIGGER = {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 1}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}
USED = [QUESTION, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT]}]
TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]
EDITED = MESSAGES | {"messages": USED, "tools": TOOLS}
SEVERAL = [
    ("/v1/messages", MESSAGES | {"context_management": {"edits": [SUMMARY_TRIGGER]}}),
    (
        "/v1/messages",
        EDITED
        | {
            "context_management": {
                "edits": [
                    TOOL_TRIGGER | {"keep": {"type": "tool_uses", "value": 0}},
                    SUMMARY_TRIGGER,
                ]
            }
        },
    ),
    ("/v1/responses", RESPONSES | {"store": True, "background": True}),
    (
        "/v1/responses",
        RESPONSES | {"context_management": [{"type": "compaction", "compact_threshold": 1}]},
    ),
    ("/v1/responses/compact", RESPONSES),
]
"""Requests that take several turns or counts."""
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
FLAT_TOOLS = [{"type": "function", **FUNCTION}]
WITH_TOOLS = [
    ("/v1/messages", MESSAGES | {"tools": TOOLS}),
    ("/v1/messages/count_tokens", MESSAGES | {"tools": TOOLS, "tool_choice": {"type": "none"}}),
    ("/v1/chat/completions", {"model": MODEL, "messages": [QUESTION], "tools": CHAT_TOOLS}),
    (
        "/v1/chat/completions",
        {"model": MODEL, "messages": [QUESTION], "tools": CHAT_TOOLS, "stream": True, "n": 2},
    ),
    ("/v1/responses", RESPONSES | {"tools": FLAT_TOOLS, "tool_choice": "auto"}),
    ("/v1/responses/input_tokens", RESPONSES | {"tools": FLAT_TOOLS}),
    ("/v1/responses/compact", RESPONSES | {"tools": FLAT_TOOLS}),
    ("/tokenize", MESSAGES | {"tools": TOOLS}),
    ("/tokenize", {"model": MODEL, "messages": [QUESTION], "tools": CHAT_TOOLS}),
]


class Counting(FakeGateway):
    """Serves two models with one alias, and counts the look-ups."""

    def __init__(self) -> None:
        super().__init__(
            cards=[CARD, ModelCard("acme/heavy", aliases=["shared"], max_model_len=9, weight=9.0)]
        )
        self.looked_up: list[str] = []
        self.opened_models: list[str] = []
        self.counted_models: list[str] = []

    def resolve(self, model: str, conversation: Conversation | None = None) -> ModelCard:
        if conversation is None:  # the model with the largest weight, for the seal
            return self.cards[-1]
        self.looked_up.append(model)
        return CARD

    async def open(self, admitted: Admitted, sink: TurnSink, *, turn_id: str) -> FakeTurn:
        self.opened_models.append(admitted.card.name)
        return await super().open(admitted, sink, turn_id=turn_id)

    async def count(self, admitted: Admitted) -> int:
        self.counted_models.append(admitted.card.name)
        return await super().count(admitted)


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_model_is_looked_up_once(path: str, body: dict[str, Any]) -> None:
    gateway = FakeGateway()
    calls: list[str] = []

    def resolve(model: str, conversation: Conversation | None = None) -> ModelCard:
        calls.append(model)
        return CARD

    gateway.resolve = resolve  # type: ignore[method-assign]
    async with (
        serving(gateway) as served,
        ClientSession(served.url) as http,
        http.post(path, json=body) as reply,
    ):
        await reply.read()
        assert reply.status == 200
    assert calls == [MODEL]


@pytest.mark.parametrize(("path", "body"), SEVERAL)
async def test_all_turns_and_counts_of_a_request_have_the_model_of_its_session(
    path: str, body: dict[str, Any]
) -> None:
    gateway = Counting()
    async with (
        serving(gateway) as served,
        ClientSession(served.url) as http,
        http.post(path, json=body | {"model": "shared"}) as reply,
    ):
        await reply.read()
        assert reply.status == 200
        await eventually(lambda: bool(gateway.opened_models))
    assert gateway.looked_up == ["shared"]
    assert {*gateway.opened_models, *gateway.counted_models} == {MODEL}


def test_only_admission_makes_admitted_requests() -> None:
    root = Path(interfaces.__file__).parents[3]
    makers = {
        path.name
        for folder in ("services", "turnwire_tools")
        for path in (root / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Admitted")
    }
    assert makers == {"admission.py"}


async def test_next_turn_of_an_answer_continues_it() -> None:
    admitted = await admission(FakeGateway()).admit(Conversation("claude-alias", []), anyone())
    assert admitted.conversation.model == MODEL
    assert admitted.conversation.client.alias == "claude-alias"
    following = admitted.next_turn([Message("user", [])], 7, ToolChoice("none"))
    assert (following.card, following.continues) == (CARD, True)
    assert following.conversation.client == admitted.conversation.client
    assert not admitted.continues


async def test_other_stages_do_not_see_that_an_answer_is_a_summary() -> None:
    admitted = await admission(FakeGateway()).admit(
        request_summary(Conversation(MODEL, [])), anyone()
    )
    assert not admitted.conversation.summary


async def test_admitted_request_is_frozen() -> None:
    admitted: Any = await admission(FakeGateway()).admit(Conversation(MODEL, []), anyone())
    with pytest.raises(FrozenInstanceError):
        admitted.conversation = Conversation("another", [])
    shorter = admitted.with_messages([Message("user", [])])
    assert (shorter.conversation.model, len(shorter.conversation.messages)) == (MODEL, 1)


async def test_counted_prompt_has_the_tenant_of_its_caller(tmp_path: Path) -> None:
    gateway = FakeGateway()
    async with (
        serving(gateway, guarded(tmp_path)) as served,
        ClientSession(served.url, headers=KEY) as http,
    ):
        for path, body in (
            ("/v1/messages/count_tokens", MESSAGES),
            ("/v1/responses/input_tokens", RESPONSES),
        ):
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


TOOL_SPECS = [ToolSpec("zqread", "reads zqfiles"), ToolSpec("zqlate", "comes later", deferred=True)]
CALL = Message("assistant", [Reasoning("zqthought"), Call("toolu_01Abcdefg", "zqother", "{}")])
SEEN = Message("tool", [Result("toolu_01Abcdefg", [Text("seen")])])
HISTORIES = [
    [Message("user", [Text("hi")])],
    [Message("developer", [Text("be brief")]), Message("user", [Text("hi")])],
    [Message("user", [Text("hi")]), CALL, SEEN],
    [
        Message("user", [Text("hi")]),
        CALL,
        SEEN,
        Message("assistant", [Text("ok")]),
        Message("user", [Text("and?")]),
    ],
]


@pytest.mark.parametrize("system", [[], [Text("top")]], ids=["plain", "system"])
@pytest.mark.parametrize("mode", ["default", "enabled", "disabled"])
async def test_tools_are_in_the_prompt_or_refused(
    real_template: ChatTemplate, mode: Any, system: list[Text]
) -> None:
    traits = probe(real_template)
    gateway = FakeGateway(cards=[ModelCard(MODEL, tools=traits.tools)])
    for messages in HISTORIES:
        conversation = Conversation(MODEL, messages, system=system, thinking=Thinking(mode))
        assert (
            await admission(gateway).admit(conversation, anyone())
        ).conversation.messages == messages
        conversation = replace(conversation, tools=TOOL_SPECS)
        variables = template_variables(conversation, traits, defaults={}, client={})
        adapted = adapt(conversation, traits, real_template)
        prompt = real_template.render(
            adapted.messages, tools=list_tools(TOOL_SPECS), variables=variables
        )
        if traits.tools:
            assert "zqread" in prompt
            assert "zqfiles" in prompt
            await admission(gateway).admit(conversation, anyone())
        else:
            assert "zqfiles" not in prompt
            with pytest.raises(Invalid) as refusal:
                await admission(gateway).admit(conversation, anyone())
            assert refusal.value.info.param == "tools"


@pytest.mark.parametrize(
    ("path", "body"), [*WITH_TOOLS, *((path, body) for path, body in SEVERAL if "tools" in body)]
)
async def test_tools_of_a_model_without_them_are_refused_everywhere(
    path: str, body: dict[str, Any]
) -> None:
    async with (
        serving(FakeGateway(cards=[replace(CARD, tools=False)])) as served,
        ClientSession(served.url) as http,
    ):
        async with http.post(path, json=body) as reply:
            document = await reply.json()
            assert reply.status == 400
            assert f"{MODEL} does not support tools" in document["error"]["message"]
            assert document["error"].get("param", "tools") == "tools"
        async with http.post(path, json=body | {"tools": [], "tool_choice": None}) as reply:
            assert reply.status == 200
    assert not any(turn.conversation.tools for turn in served.gateway.turns)
