"""Texts of calls, whatever a model has written as arguments."""

import pytest

from schemas.conversation import Call
from services.rollouts.call_texts import CallTexts, text_key, texts_in
from services.rollouts.sampled_turn import digest_of

DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ('{"a": "x", "b": [1, null, {"c": ["y"]}], "d": true}', {"x", "y"}),
        ("", {""}),
        ('{"a": "x', {'{"a": "x'}),
        ("*** Begin Patch", {"*** Begin Patch"}),
        (DEEP, {DEEP}),
        (DEEP + "]" * 100_000, {DEEP + "]" * 100_000}),
        ('"\\ud800"', {'"\\ud800"'}),
    ],
)
def test_strings_at_any_depth(arguments: str, texts: set[str]) -> None:
    assert {*texts_in(arguments)} == texts


def test_keys_ignore_white_space_and_empty_texts() -> None:
    call = Call("c1", "Task", '{"prompt": " Look\\naround. ", "of": ["", " "]}')
    assert CallTexts.of(call).keys == {text_key("Lookaround.")}


def test_any_call_has_a_digest() -> None:
    for arguments in (DEEP, "\ud800", '{"a": 1e999}'):
        call = Call("c1", "Task", arguments)
        assert digest_of([call]) == digest_of([call])
        assert CallTexts.of(call).keys
