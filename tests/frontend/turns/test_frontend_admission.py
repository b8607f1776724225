"""The model of a request, and what it must be able to do."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
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
from services.frontend.turns.compaction import request_summary
from services.templates.chat_template import ChatTemplate
from services.templates.messages import adapt
from services.templates.probe import probe
from services.templates.thinking import template_variables
from services.templates.tools import list_tools
from tests.kit.every import Cases
from tests.kit.frontend import (
    ASK,
    ASKS,
    CARD,
    KEY,
    MODEL,
    QUESTION,
    FakeGateway,
    admission,
    guarded,
    serving,
)
from tests.kit.waiting import eventually

RESPONSE = {**ASKS["/v1/responses"], "store": False}
COUNTING = [("/v1/messages/count_tokens", ASK), ("/v1/responses/input_tokens", RESPONSE)]
ROUTES = [
    *COUNTING,
    ("/v1/messages", ASK),
    ("/v1/messages", ASK | {"stream": True}),
    ("/v1/chat/completions", ASK),
    ("/v1/completions", {"model": MODEL, "prompt": "hi"}),
    ("/v1/responses", RESPONSE),
    ("/tokenize", ASK),
    ("/tokenize", {"model": MODEL, "prompt": "hi"}),
    ("/detokenize", {"model": MODEL, "tokens": [1]}),
]


def managed(*edits: dict[str, Any]) -> dict[str, Any]:
    return {"context_management": {"edits": [*edits]}}


TRIGGER = {"type": "input_tokens", "value": 1}
SUMMARIZED = {"type": "compact_20260112", "trigger": TRIGGER}
CLEARED = {
    "type": "clear_tool_uses_20250919",
    "trigger": TRIGGER,
    "keep": {"type": "tool_uses", "value": 0},
}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}
USED = [QUESTION, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT]}]
TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
CHAT_TOOLS = {"tools": [{"type": "function", "function": FUNCTION}]}
FLAT_TOOLS = {"tools": [{"type": "function", **FUNCTION}]}
EDITED = ASK | {"messages": USED, "tools": TOOLS} | managed(CLEARED, SUMMARIZED)
SEVERAL = [
    ("/v1/messages", ASK | managed(SUMMARIZED)),
    ("/v1/messages", EDITED),
    ("/v1/responses", RESPONSE | {"store": True, "background": True}),
    (
        "/v1/responses",
        RESPONSE | {"context_management": [{"type": "compaction", "compact_threshold": 1}]},
    ),
    ("/v1/responses/compact", RESPONSE),
]
"""Requests that take several turns or counts."""
CHAT = {"model": MODEL, "messages": [QUESTION]}
WITH_TOOLS = [
    ("/v1/messages", EDITED),
    ("/v1/messages", ASK | {"tools": TOOLS}),
    ("/v1/chat/completions", CHAT | CHAT_TOOLS | {"stream": True, "n": 2}),
    ("/v1/responses", RESPONSE | FLAT_TOOLS | {"tool_choice": "auto"}),
    ("/v1/responses/compact", RESPONSE | FLAT_TOOLS),
    ("/tokenize", CHAT | CHAT_TOOLS),
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


async def test_other_stages_do_not_see_that_an_answer_is_a_summary() -> None:
    summary = request_summary(Conversation(MODEL, []))
    admitted = await admission(FakeGateway()).admit(summary, anyone())
    assert not admitted.conversation.summary


async def test_counted_prompt_has_the_tenant_of_its_caller(tmp_path: Path) -> None:
    async with serving(config=guarded(tmp_path), headers=KEY) as served:
        for path, body in COUNTING:
            assert (await served.post(path, body)).status == 200
    tenants = [conversation.client.tenant for conversation in served.gateway.counted]
    assert tenants == ["alpha", "alpha"]


async def test_request_without_a_model_is_refused(cases: Cases) -> None:
    async with serving(FakeGateway(cards=[CARD, ModelCard("acme/other")])) as served:
        for path, whole in ROUTES:
            body = {name: value for name, value in whole.items() if name != "model"}
            with cases.case(path=path, fields=[*body]):
                reply = await served.post(path, body)
                assert reply.status == 400
                assert reply.json["error"].get("param", "model") == "model"


TOOL_SPECS = [ToolSpec("zqread", "reads zqfiles"), ToolSpec("zqlate", "comes later", deferred=True)]
MODES: tuple[Any, ...] = ("default", "enabled", "disabled")
HI = Message("user", [Text("hi")])
CALL = Message("assistant", [Reasoning("zqthought"), Call("toolu_01Abcdefg", "zqother", "{}")])
SEEN = Message("tool", [Result("toolu_01Abcdefg", [Text("seen")])])
HISTORIES = [
    [HI],
    [Message("developer", [Text("be brief")]), HI],
    [HI, CALL, SEEN],
    [HI, CALL, SEEN, Message("assistant", [Text("ok")]), Message("user", [Text("and?")])],
]


async def test_tools_are_in_the_prompt_or_refused(real_template: ChatTemplate) -> None:
    traits = probe(real_template)
    admit = admission(FakeGateway(cards=[ModelCard(MODEL, tools=traits.tools)])).admit

    async def refused_field(conversation: Conversation) -> str | None:
        try:
            admitted = await admit(conversation, anyone())
        except Invalid as refusal:
            return refusal.info.param
        assert admitted.conversation.messages == conversation.messages
        return None

    def names_in_prompt(conversation: Conversation) -> set[str]:
        variables = template_variables(conversation, traits, defaults={}, client={})
        adapted = adapt(conversation, traits, real_template)
        tools = list_tools(conversation.tools)
        prompt = real_template.render(adapted.messages, tools=tools, variables=variables)
        return {name for name in ("zqread", "zqfiles") if name in prompt}

    failures: list[Conversation] = []
    for mode, system, history in product(MODES, ([], [Text("top")]), HISTORIES):
        plain = Conversation(MODEL, history, system=system, thinking=Thinking(mode))
        assert await refused_field(plain) is None
        asked = replace(plain, tools=TOOL_SPECS)
        names, refused = names_in_prompt(asked), await refused_field(asked)
        if traits.tools:
            is_right = names == {"zqread", "zqfiles"} and refused is None
        else:
            is_right = "zqfiles" not in names and refused == "tools"
        if not is_right:
            failures.append(asked)
    assert failures == []


async def test_tools_of_a_model_without_them_are_refused_everywhere(
    cases: Cases,
) -> None:
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
    assert not any(asked.tools for asked in served.gateway.conversations)
