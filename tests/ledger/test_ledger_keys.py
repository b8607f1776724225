"""Arguments have the same key after clients sent them back."""

import json

import pytest

from services.ledger.keys import canonical_arguments, key_arguments


@pytest.mark.parametrize(
    ("original", "sent"),
    [
        ({"command": "cd /home/u/p && make"}, {"command": "make"}),
        (
            {"file_path": "/a", "old_string": "x", "new_string": "y  \nz\t"},
            {"replace_all": False, "file_path": "/a", "old_string": "x", "new_string": "y\nz"},
        ),
        ({"content": "a \r\n\n b \n"}, {"content": "a\r\n\n b\n"}),
        (
            {"timeout": 5000.0, "n": 12345678901234567890},
            {"n": 12345678901234567000, "timeout": 5000},
        ),
    ],
)
def test_call_that_claude_code_tidied_has_the_same_key(original: object, sent: object) -> None:
    assert key_arguments(json.dumps(original)) == key_arguments(json.dumps(sent))


@pytest.mark.parametrize(
    ("original", "sent"),
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
def test_other_calls_have_other_keys(original: object, sent: object) -> None:
    assert key_arguments(json.dumps(original)) != key_arguments(json.dumps(sent))


def test_canonical_arguments_keep_every_difference_of_value() -> None:
    assert canonical_arguments('{"a": "x "}') != canonical_arguments('{"a": "x"}')
    assert canonical_arguments('{"a": false}') != canonical_arguments("{}")


@pytest.mark.parametrize(
    "arguments", ["", "[1]", "nonsense ", '{"a": ' + "[" * 100_000, '{"input": "p "}']
)
def test_any_arguments_have_a_key(arguments: str) -> None:
    assert key_arguments(arguments) == key_arguments(arguments)
    assert key_arguments(arguments, freeform=True)
