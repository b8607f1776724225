"""Tests scheduling hints in the bodies of every API."""

import json
from typing import Any

import pytest

from schemas.conversation import Hints
from schemas.errors import Invalid
from services.frontend.apis.chat.render import ChatSettings
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.completions.request import Completions
from services.frontend.apis.messages.request import Messages
from services.frontend.apis.responses.dialect import Responses
from services.frontend.turns.interfaces import Dialect

QUESTION = [{"role": "user", "content": "Hi."}]
APIS: list[tuple[Dialect, dict[str, Any]]] = [
    (Messages(), {"max_tokens": 64, "messages": QUESTION}),
    (Chat(ChatSettings()), {"messages": QUESTION}),
    (Completions(), {"prompt": "Hi."}),
    (Responses(), {"input": "Hi."}),
]
BAD: list[tuple[str, dict[str, Any]]] = [
    ("nvext.agent_hints.priority", {"nvext": {"agent_hints": {"priority": "high", "osl": 3}}}),
    ("nvext.agent_hints.osl", {"nvext": {"agent_hints": {"priority": 1, "osl": -3}}}),
    (
        "nvext.agent_hints.latency_sensitivity",
        {"nvext": {"agent_hints": {"latency_sensitivity": []}}},
    ),
    ("nvext.agent_hints", {"nvext": {"agent_hints": [1]}}),
    ("priority", {"priority": 0.5}),
    ("cache_salt", {"cache_salt": 7}),
]


@pytest.mark.parametrize(("api", "body"), APIS, ids=lambda value: getattr(value, "name", None))
def test_hints_keep_their_values(api: Dialect, body: dict[str, Any]) -> None:
    agent_hints = {
        "latency_sensitivity": 0.9,
        "osl": 300,
        "speculative_prefill": True,
        "strict_priority": 4,
    }
    asked = {
        **body,
        "model": "m",
        "nvext": {"agent_hints": agent_hints, "annotations": []},
        "cache_salt": "s",
    }
    (conversation,) = api.parse(json.dumps(asked).encode(), {}).conversations
    assert conversation.hints == Hints(
        latency_sensitivity=0.9, osl=300, speculative_prefill=True, cache_salt="s"
    )


@pytest.mark.parametrize(
    ("place", "wrong"), BAD, ids=lambda value: value if isinstance(value, str) else ""
)
@pytest.mark.parametrize(("api", "body"), APIS, ids=lambda value: getattr(value, "name", None))
def test_hint_of_a_wrong_type_is_refused_by_its_name(
    api: Dialect, body: dict[str, Any], place: str, wrong: dict[str, Any]
) -> None:
    with pytest.raises(Invalid) as refusal:
        api.parse(json.dumps({**body, "model": "m", **wrong}).encode(), {})
    assert refusal.value.info.param == place
    assert place in refusal.value.info.message
