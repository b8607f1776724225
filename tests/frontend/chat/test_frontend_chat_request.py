"""Tests the fields of requests of Chat Completions and Completions that other APIs do not have."""

from typing import Any

import msgspec

from schemas.conversation import Grammar, Hints, RawPrompt, ToolChoice, ToolSpec
from schemas.token_ids import pack_ids
from services.frontend.apis.chat.render import ChatSettings
from services.frontend.apis.chat.request import Chat, ChatRequest
from tests.kit.bodies import (
    CHAT,
    COMPLETIONS,
    SCHEMA,
    USER,
    assistant,
    block,
    chat,
    chat_tool,
    completions,
)
from tests.kit.every import for_rows

LOOK = chat_tool(description="Looks.")
SPEC = ToolSpec("look", "Looks.", SCHEMA)
GRAMMAR = block("grammar", grammar={"syntax": "lark", "definition": "start: /x/"})
PATCH = block("custom", custom={"name": "patch", "format": GRAMMAR})


def test_each_choice_has_its_own_seed() -> None:
    def seeds(**fields: Any) -> list[int | None]:
        return [each.sampling.seed for each in CHAT.ask(**fields).conversations]

    assert seeds(n=3, seed=41) == [41, 42, 43]
    assert seeds(n=2) == [None, None]


def test_tools_are_converted() -> None:
    parameters = {"type": "object", "properties": {"b": {}, "a": {}}}
    plain = chat_tool("f", strict=True, parameters=parameters)
    asked = CHAT.ask(tools=[LOOK, PATCH, block("custom", custom={"name": "say"}), plain])
    assert asked.conversation.tools == [
        SPEC,
        ToolSpec("patch", kind="custom", grammar=Grammar("lark", "start: /x/")),
        ToolSpec("say", kind="custom"),
        ToolSpec("f", schema=parameters, strict=True),
    ]
    assert list(asked.conversation.tools[3].schema["properties"]) == ["b", "a"]
    assert asked.shape.freeform == {"patch", "say"}


def test_legacy_functions_are_tools() -> None:
    asked = CHAT.ask(functions=[LOOK["function"]], function_call={"name": "look"})
    assert asked.conversation.tools == [SPEC]
    assert asked.conversation.tool_choice == ToolChoice("tool", "look", parallel=False)
    assert asked.shape.legacy
    both = CHAT.ask(functions=[{"name": "look"}, {"name": "other"}], tools=[LOOK])
    assert [tool.name for tool in both.conversation.tools] == ["look", "other"]
    assert not both.shape.legacy


def test_other_supported_fields_are_read() -> None:
    asked = CHAT.ask(verbosity="low", web_search_options={}, service_tier="auto", stream=True)
    assert asked.stream
    assert asked.conversation.verbosity == "low"
    assert asked.notes == ["web_search_options"]
    assert asked.shape.service_tier == "default"
    assert not CHAT.read(USER, assistant("Well,")).continues_answer
    assert CHAT.read(continue_final_message=True).continues_answer
    for mark in ("prefix", "partial"):
        assert CHAT.read(USER, assistant("Well,", **{mark: True})).continues_answer


def test_request_selects_the_form_of_the_answer() -> None:
    header = {"x-turnwire-reasoning-field": "reasoning", "x-turnwire-reasoning-details": "1"}
    both = ChatSettings("both", True)

    def shape(headers: Any = None, settings: ChatSettings | None = None, **fields: Any) -> Any:
        body = msgspec.json.encode(chat(**fields))
        asked: ChatRequest = Chat(settings or ChatSettings()).parse(body, headers or {})
        return asked.shape

    assert shape().reasoning == "reasoning_content"
    assert shape({}, both).reasoning == "both"
    assert (shape(header).reasoning, shape(header).details) == ("reasoning", True)
    assert not shape({"x-turnwire-reasoning-details": "0"}, both).details
    assert shape(header, include_reasoning=False).reasoning == "omitted"
    assert shape(reasoning={"exclude": True}).reasoning == "omitted"
    assert shape(separate_reasoning=False).reasoning == "inline"
    for usage in (True, False):
        options = {"include_usage": usage, "continuous_usage_stats": True}
        found = shape(stream_options=options)
        assert (found.include_usage, found.continuous_usage) == (usage, usage)


def ids(*ids: int) -> RawPrompt:
    return RawPrompt(token_ids=pack_ids([*ids]))


@for_rows(
    [
        ("Once", [RawPrompt("Once")]),
        (None, [RawPrompt("")]),
        ([1, 2, 4294967295], [ids(1, 2, 4294967295)]),
        (["a", [2]], [RawPrompt("a"), ids(2)]),
    ],
)
def test_every_form_of_prompt_is_parsed(prompt: Any, raw: list[RawPrompt]) -> None:
    asked = COMPLETIONS.ask(prompt=prompt)
    assert [conversation.prompt for conversation in asked.conversations] == raw
    assert [conversation.messages for conversation in asked.conversations] == [[]] * len(raw)


def test_each_prompt_has_n_choices_with_its_echo() -> None:
    asked = COMPLETIONS.ask(prompt=["a", "b"], n=2, seed=5, best_of=2, echo=True)
    result = [(each.prompt.text, each.sampling.seed) for each in asked.conversations if each.prompt]
    assert result == [("a", 5), ("a", 6), ("b", 5), ("b", 6)]
    assert asked.shape.echoes == ["a", "a", "b", "b"]
    assert COMPLETIONS.ask(prompt=["a", "b"], echo=False).shape.echoes == ["", ""]


def test_supported_fields_reach_the_conversation() -> None:
    fields = completions(priority=1, cache_salt="s", add_special_tokens=False, suffix="end")
    asked = COMPLETIONS.parse(fields, {"user-agent": "ua"})
    (conversation,) = asked.conversations
    assert conversation.prompt == RawPrompt("Once", add_special_tokens=False)
    assert conversation.hints == Hints(priority=1, cache_salt="s")
    assert conversation.client.user_agent == "ua"
    assert asked.notes == ["suffix"]
    assert COMPLETIONS.ask(suffix="").notes == []
