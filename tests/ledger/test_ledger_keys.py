"""Arguments as clients send them back still stand for the same call."""

import json

import pytest

from services.ledger.keys import canonical_arguments, key_arguments


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ({"command": "cd /home/u/p && make"}, {"command": "make"}),
        (
            {"file_path": "/a", "old_string": "x", "new_string": "y  \nz\t"},
            {"replace_all": False, "file_path": "/a", "old_string": "x", "new_string": "y\nz"},
        ),
        ({"content": "a \r\n\n b \n"}, {"content": "a\r\n\n b\n"}),
        ({"timeout": 5000.0, "n": 12345678901234567890}, {"n": 12345678901234567000, "timeout": 5000}),
    ],
)
def test_what_claude_code_makes_of_a_call_is_the_same_call(said: object, sent: object) -> None:
    assert key_arguments(json.dumps(said)) == key_arguments(json.dumps(sent))


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ({"command": "cd /p && make"}, {"command": "cd /p"}),
        ({"command": "make"}, {"command": "make test"}),
        ({"command": "cd p && make"}, {"command": "make"}),
        ({"script": "cd /p && make"}, {"script": "make"}),
        ({"replace_all": True}, {}),
        ({"text": "  a"}, {"text": "a"}),
        ({"text": "a\n"}, {"text": "a"}),
        ({"n": 0}, {}),
        ({"n": None}, {}),
        ({"inner": {"on": False}}, {"inner": {}}),
    ],
)
def test_another_call_is_another(said: object, sent: object) -> None:
    assert key_arguments(json.dumps(said)) != key_arguments(json.dumps(sent))


def test_what_a_template_shows_is_compared_exactly() -> None:
    assert canonical_arguments('{"a": "x "}') != canonical_arguments('{"a": "x"}')
    assert canonical_arguments('{"a": false}') != canonical_arguments("{}")


@pytest.mark.parametrize("arguments", ["", "[1]", "nonsense ", '{"a": ' + "[" * 100_000, '{"input": "p "}'])
def test_anything_has_a_key(arguments: str) -> None:
    assert key_arguments(arguments) == key_arguments(arguments)
    assert key_arguments(arguments, freeform=True)
