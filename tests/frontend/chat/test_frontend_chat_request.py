"""Tests the fields of a request of Chat Completions that other APIs do not have."""

from typing import Any

import msgspec

from services.frontend.apis.chat.render import ChatSettings
from services.frontend.apis.chat.request import Chat, ChatRequest
from tests.kit.bodies import CHAT, USER, assistant, chat


def test_each_choice_has_its_own_seed() -> None:
    def seeds(**fields: Any) -> list[int | None]:
        return [each.sampling.seed for each in CHAT.ask(**fields).conversations]

    assert seeds(n=3, seed=41) == [41, 42, 43]
    assert seeds(n=2) == [None, None]


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
