"""Arguments have the same key after clients sent them back."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.ledger.keys import canonical_arguments, key_arguments
from tests.kit.every import for_rows
from tests.kit.examples import examples

PLAN = {"plan": "# Plan\n\n1. Fix the parser."}
QUESTIONS = {"questions": [{"question": "Which?", "multiSelect": False}]}
TIDIED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Bash", {"command": "cd /home/u/p && make"}, {"command": "make"}),
    ("Bash", {"command": "cd C:\\src && make"}, {"command": "make"}),
    ("Bash", {"command": "find -exec rm {} \\\\;"}, {"command": "find -exec rm {} \\;"}),
    (
        "Bash",
        {"command": "ls", "timeout": "5000", "run_in_background": "true"},
        {"command": "ls", "timeout": 5000, "run_in_background": True},
    ),
    (
        "Edit",
        {"file_path": "/a", "old_string": "x", "new_string": "y  \nz\t"},
        {"replace_all": False, "file_path": "/a", "old_string": "x", "new_string": "y\nz"},
    ),
    (
        "Edit",
        {"file_path": "/a", "old_str": "<fnr>", "new_str": "\n\nH: <n>"},
        {
            "replace_all": False,
            "file_path": "/a",
            "old_string": "<function_results>",
            "new_string": "\n\nHuman: <name>",
        },
    ),
    ("Write", {"content": "a \r\n\n b \n"}, {"content": "a\r\n\n b\n"}),
    ("Write", {"content": "a \rb\ufeff"}, {"content": "a\rb"}),
    ("Write", {"content": "caf\\u00e9 \\ud83c\\udf0a"}, {"content": "café 🌊"}),
    ("Read", {"file_path": "/a", "offset": "20"}, {"file_path": "/a", "offset": 20}),
    ("SendUserFile", {"files": "/a"}, {"files": ["/a"]}),
    (
        "run",
        {"timeout": 5000.0, "n": 12345678901234567890},
        {"n": 12345678901234567000, "timeout": 5000},
    ),
    ("ExitPlanMode", PLAN, {}),
    ("ExitPlanMode", {**PLAN, "planFilePath": "/home/u/.claude/plans/a.md"}, {}),
    ("ExitPlanMode", {**PLAN, "allowedPrompts": []}, {"allowedPrompts": []}),
    ("run", {"n": None, "inner": {"on": None}}, {"inner": {}}),
    ("run", {"inner": [{"on": None, "a": 1}]}, {"inner": [{"a": 1}]}),
    ("AskUserQuestion", {**QUESTIONS, "answers": None}, QUESTIONS),
    ("run", {"text": "a\ud800b", "\udc00": 1}, {"text": "a\ufffdb", "\ufffd": 1}),
]
"""Calls as models write them, and as clients send them back."""


@for_rows(TIDIED)
def test_call_that_a_client_tidied_has_the_same_key(
    name: str, original: dict[str, Any], sent: dict[str, Any]
) -> None:
    assert key_arguments(name, json.dumps(original)) == key_arguments(name, json.dumps(sent))


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
        ({"n": [None]}, {"n": []}),
        ({"plan": "a"}, {}),
        ({"inner": {"on": False}}, {"inner": {}}),
    ],
)
def test_other_calls_have_other_keys(original: object, sent: object) -> None:
    assert key_arguments("run", json.dumps(original)) != key_arguments("run", json.dumps(sent))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [*map(without_nulls, value)] if isinstance(value, list) else value


@settings(max_examples=examples(100))
@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4))
def test_null_members_are_not_in_the_key(arguments: dict[str, Any]) -> None:
    sent = json.dumps(without_nulls(arguments))
    assert key_arguments("run", json.dumps(arguments)) == key_arguments("run", sent)


def test_canonical_arguments_keep_every_difference_of_value() -> None:
    assert canonical_arguments('{"a": "x "}') != canonical_arguments('{"a": "x"}')
    assert canonical_arguments('{"a": false}') != canonical_arguments("{}")
    assert canonical_arguments('{"a": null}') != canonical_arguments("{}")


@pytest.mark.parametrize(
    "arguments",
    ["", "[1]", "nonsense ", '{"a": ' + "[" * 100_000, '{"input": "p "}', '{"n": "9' + "9" * 400],
)
def test_any_arguments_have_a_key(arguments: str) -> None:
    assert key_arguments("run", arguments) == key_arguments("run", arguments)
    assert key_arguments("run", arguments, freeform=True)
