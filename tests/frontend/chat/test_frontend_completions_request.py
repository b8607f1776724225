"""Tests requests of Completions: the four forms of prompts, and choices."""

from typing import Any

import pytest

from schemas.conversation import Hints, RawPrompt
from schemas.frames import pack_ids
from tests.kit.bodies import COMPLETIONS, completions


def ids(*ids: int) -> RawPrompt:
    return RawPrompt(token_ids=pack_ids([*ids]))


@pytest.mark.parametrize(
    ("prompt", "raw"),
    [
        ("Once", [RawPrompt("Once")]),
        ("", [RawPrompt("")]),
        (None, [RawPrompt("")]),
        (["a", "b"], [RawPrompt("a"), RawPrompt("b")]),
        ([1, 2, 4294967295], [ids(1, 2, 4294967295)]),
        ([[1], [2, 3]], [ids(1), ids(2, 3)]),
        (["a", [2]], [RawPrompt("a"), ids(2)]),
    ],
)
def test_every_form_of_prompt_is_parsed(prompt: Any, raw: list[RawPrompt]) -> None:
    asked = COMPLETIONS.ask(prompt=prompt)
    assert [conversation.prompt for conversation in asked.conversations] == raw
    assert all(conversation.messages == [] for conversation in asked.conversations)


def test_each_prompt_has_n_choices() -> None:
    asked = COMPLETIONS.ask(prompt=["a", "b"], n=2, seed=5, best_of=2)
    result = [(each.prompt.text, each.sampling.seed) for each in asked.conversations if each.prompt]
    assert result == [("a", 5), ("a", 6), ("b", 5), ("b", 6)]


def test_special_tokens_can_be_left_out() -> None:
    raw = RawPrompt("Once", add_special_tokens=False)
    assert COMPLETIONS.read(add_special_tokens=False).prompt == raw


def test_supported_fields_reach_the_conversation() -> None:
    asked = COMPLETIONS.parse(completions(priority=1, cache_salt="s"), {"user-agent": "ua"})
    (conversation,) = asked.conversations
    assert conversation.hints == Hints(priority=1, cache_salt="s")
    assert conversation.client.user_agent == "ua"


def test_echo_precedes_every_choice() -> None:
    echoed = COMPLETIONS.ask(prompt=["a", "b"], n=2, echo=True)
    assert echoed.shape.echoes == ["a", "a", "b", "b"]
    assert COMPLETIONS.ask(prompt=["a", "b"], echo=False).shape.echoes == ["", ""]


def test_suffix_is_dropped_and_noted() -> None:
    assert COMPLETIONS.ask(suffix="end").notes == ["suffix"]
    assert COMPLETIONS.ask(suffix="").notes == []
