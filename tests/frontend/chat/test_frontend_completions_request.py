"""Tests the fields of a Completions request that other APIs do not have."""

from typing import Any

from schemas.conversation import Hints, RawPrompt
from schemas.token_ids import pack_ids
from tests.kit.bodies import COMPLETIONS, completions
from tests.kit.every import for_rows


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
