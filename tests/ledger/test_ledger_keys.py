"""Arguments have the same key after clients sent them back."""

import json
from typing import Any

from services.ledger.turns.keys import canonical_arguments, key_arguments
from tests.kit.every import for_each, for_rows

PLAN = {"plan": "# Plan\n\n1. Fix the parser."}
TIDIED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Bash", {"command": "cd /home/u/p && make"}, {"command": "make"}),
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
    ("SendUserFile", {"files": "/a"}, {"files": ["/a"]}),
    ("ExitPlanMode", PLAN, {}),
    ("ExitPlanMode", {**PLAN, "planFilePath": "/home/u/.claude/plans/a.md"}, {}),
    ("run", {"n": None, "inner": {"on": None}}, {"inner": {}}),
    ("run", {"text": "a\ud800b", "\udc00": 1}, {"text": "a\ufffdb", "\ufffd": 1}),
]
"""Calls as models write them, and as clients send them back."""


@for_rows(TIDIED)
def test_call_that_a_client_tidied_has_the_same_key(
    name: str, original: dict[str, Any], sent: dict[str, Any]
) -> None:
    assert key_arguments(name, json.dumps(original)) == key_arguments(name, json.dumps(sent))


@for_each(["exitplanmode", "exit_plan_mode", "the_ExitPlanMode_tool"])
def test_call_that_a_client_tidied_and_renamed_has_the_same_key(name: str) -> None:
    tidied = key_arguments("ExitPlanMode", "{}")
    assert key_arguments(name, json.dumps(PLAN)) == key_arguments(name, "{}") == tidied


@for_rows(
    [
        ({"command": "cd /p && make"}, {"command": "cd /p"}),
        ({"command": "cd p && make"}, {"command": "make"}),
        ({"script": "cd /p && make"}, {"script": "make"}),
        ({"replace_all": True}, {}),
        ({"text": "  a"}, {"text": "a"}),
        ({"text": "a\n"}, {"text": "a"}),
        ({"n": [None]}, {"n": []}),
        ({"plan": "a"}, {}),
        ({"inner": {"on": False}}, {"inner": {}}),
    ]
)
def test_other_calls_have_other_keys(original: object, sent: object) -> None:
    assert key_arguments("run", json.dumps(original)) != key_arguments("run", json.dumps(sent))


def test_canonical_arguments_keep_every_difference_of_value() -> None:
    assert canonical_arguments('{"a": "x "}') != canonical_arguments('{"a": "x"}')
    assert canonical_arguments('{"a": false}') != canonical_arguments("{}")
    assert canonical_arguments('{"a": null}') != canonical_arguments("{}")


@for_each(
    ["", "[1]", "nonsense ", '{"a": ' + "[" * 100_000, '{"input": "p "}', '{"n": "9' + "9" * 400]
)
def test_any_arguments_have_a_key(arguments: str) -> None:
    assert key_arguments("run", arguments) == key_arguments("run", arguments)
    assert key_arguments("run", arguments, freeform=True)
