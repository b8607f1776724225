"""Calls as JSON: objects, lists, and arguments after a name."""

from typing import Any

from schemas.events import FinishReason
from services.families.grammar.call_marker import CallReader
from services.families.grammar.turn_state import CallOpener
from services.families.readers.json_calls import Form, JsonCalls
from tests.families.call_readers import ANYWAY, CUT, Calls, check_given_back, f, read, read_blocks
from tests.kit.every import for_each, for_rows

CALL = CallOpener("<call>", "<call>")
NAMED = CallOpener("<call f>", "<call", "f")


def arguments_until(*closers: str, **options: Any) -> JsonCalls:
    return JsonCalls(form=Form.ARGUMENTS, call_closers=closers, **options)


READERS: dict[str, tuple[CallReader, CallOpener]] = {
    "object": (JsonCalls(call_closers=("</call>",)), CALL),
    "bare object": (JsonCalls(strict=True), CallOpener("{", "{")),
    "list": (JsonCalls(form=Form.LIST, call_closers=("</calls>",), ids=("id",)), CALL),
    "arguments": (arguments_until("```{ws}<end>", "<end>"), NAMED),
    "arguments to a stop": (arguments_until("<|call|>", stop_closes=True), NAMED),
    "keyed": (JsonCalls(form=Form.KEYED), CALL),
}
OBJECTS = (
    '\n{"name": "f", "arguments": {"a": 1}}\n</call> x',
    '{"arguments": {"a": 1}, "name": "f"}</call> x',
    '{"id": 7, "x": [{}], "name": "f", "parameters": {"a": 1}, "y": "}"}</call> x',
    '{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}</call> x',
    '{"function": "f", "arguments": {"a": 1}}</call> x',
    '{"name": "f", "arguments": "{\\"a\\": 1}"}</call> x',
    '{"arguments": "{\\"a\\": 1}", "name": "f"}</call> x',
    '{"name": "f", "arguments": {"a": 1,},}</call> x',
    '{"name": "f", "arguments": {"a": 1}}}\n</call> x',
    "{'name': 'f', 'arguments': {'a': 1}}</call> x",
)
NO_ARGUMENTS = ("", ', "arguments": {}', ', "arguments": null', ', "arguments": ""')
WRONG_KEYS = ('"input": {"a": 1}', '"a": 1', '"name": "f", "a": 1')
READ: list[tuple[str, str, Calls, str]] = [
    # JSON objects
    *[("object", text, [f(a=1)], " x") for text in OBJECTS],
    *[("object", f'{{"name": "f"{empty}}}</call>', [f()], "") for empty in NO_ARGUMENTS],
    *[("object", f'{{"name": "f", {wrong}}}</call>', [CUT], "</call>") for wrong in WRONG_KEYS],
    ("object", '{"type": "function", "id": "x", "index": 0, "name": "f"}</call>', [f()], ""),
    ("object", '{"name": "f", "arguments": {"a": "</call>"}}</call>', [f(a="</call>")], ""),
    ("object", '{"name": "f", "arguments": {"a": 1}}', [f(a=1)], ""),
    ("object", '{"name": "f", "arguments": {"a": 1}}\n<call>', [f(a=1)], "<call>"),
    ("object", '{"name": "f", "arguments": {a: 1}}\n</call>\n<call>', [CUT], "</call>\n<call>"),
    ("object", '{"name": "f", "arguments": {"a": oops}}\n<call>{', [CUT], "<call>{"),
    (  # half of a surrogate pair survives a second encoding
        "object",
        '{"name": "f", "arguments": "{\\"a\\": \\"\\ud83d\\ude00 \\ud83d\\"}"}</call>',
        [f(a="😀 \ufffd")],
        "",
    ),
    ("object", '{"name": "\\ud83dx"}</call>', [("\ufffdx", {})], ""),
    (  # encoded arguments are decoded once
        "object",
        '{"name": "f", "arguments": "{\\"a\\": \\"\\\\ud83d\\\\ude00 \\u00e9\\\\n\\"}"}</call>',
        [f(a="😀 é\n")],
        "",
    ),
    ("bare object", '"name": "new", "parameters": {"a": 1}} x', [("new", {"a": 1})], " x"),
    # lists
    (
        "list",
        '[{"id": "x1", "name": "f", "arguments": {}}, '
        '{"name": "h", "arguments": {"a": [1]}, "id": "late"}]</calls>',
        [f(), ("h", {"a": [1]})],
        "</calls>",
    ),
    *[
        (
            "list",
            f'[{{"name": "g"}}, {{{wrong}, "name": "f"}}]</calls>',
            [("g", {}), CUT],
            "</calls>",
        )
        for wrong in WRONG_KEYS
    ],
    ("keyed", '[{"f": {"a": 1}}, {"g": {}}]', [f(a=1), ("g", {})], ""),
    # arguments after a name
    ("arguments", '\n{"a": "```"}\n```<end>x', [f(a="```")], "x"),
    ("arguments", '"{\\"a\\": 1}"<end>', [f(a=1)], ""),
    ("arguments", "<end>x", [f()], "x"),
    ("arguments", "what<end>", [CUT], "<end>"),
    ("arguments to a stop", "", [f()], ""),
]


@for_rows(READ)
def test_calls_are_read(reader: str, text: str, calls: Calls, rest: str) -> None:
    assert read(*READERS[reader], text) == (calls, rest, None)


NOT_OBJECTS = ('"what"', '"[1]"', '"{} x"', '"\'a {}"', "12", '"{\\"a\\": }"')


@for_each(NOT_OBJECTS)
def test_arguments_that_are_not_an_object_never_complete(text: str) -> None:
    assert read(*READERS["arguments"], text + "<end>")[0] == [CUT]


@for_rows(
    [
        ("object", '{"name": <function-name>, "arguments": …}</call>'),
        ("object", "{...}</call>"),
        ("object", '{"name": "unknown", "arguments": 1}</call>'),
        ("bare object", '"answer": 42}'),
        ("bare object", '"name": "Bob"}'),
        ("bare object", '"name": "f", "age": 3}'),
        ("bare object", '"name": 3}'),
        ("list", "[1, 2]"),
    ]
)
def test_text_that_is_not_a_call_is_given_back(reader: str, text: str) -> None:
    check_given_back(*READERS[reader], text)


def test_call_ids_come_from_the_call_or_its_marker() -> None:
    calls = (
        '[{"id": "x1", "name": "f", "arguments": {}}, {"name": "g", "arguments": {}, "id": "late"}]'
    )
    blocks = read_blocks(*READERS["list"], calls, FinishReason.STOP)[0]
    assert [block["id"] for block in blocks] == ["x1", None]
    marker = CallOpener("<call>", "<call>", "f", "functions.f:3")
    ((block,), _, _) = read_blocks(READERS["arguments"][0], marker, "{}<end>", FinishReason.STOP)
    assert block["id"] == "functions.f:3"


@for_rows(
    [
        ("object", '{"name": "f", "arguments": {"a": 1}}', [CUT], [FinishReason.LENGTH]),
        ("object", '{"name": "f", "arguments": {"a": "x', [CUT], ANYWAY),
        ("object", '{"name": "f", "arguments": {"a": 1}', [CUT], ANYWAY),
        ("object", '{"name": "f", "arguments": "{\\"a', [CUT], ANYWAY),
        (
            "list",
            '[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"a": "x',
            [f(), ("g", None)],
            [FinishReason.LENGTH],
        ),
        ("arguments to a stop", "", [], [FinishReason.LENGTH]),
        ("arguments to a stop", "{}", [CUT], [FinishReason.LENGTH]),
    ]
)
def test_cut_call_never_completes(
    reader: str, text: str, calls: Calls, reasons: list[FinishReason]
) -> None:
    for reason in reasons:
        assert read(*READERS[reader], text, reason)[0] == calls, reason


def test_call_cut_before_its_name_is_dropped() -> None:
    for text in ("{", '{"na', '{"name": "f', '{"name": "f", "arguments": '):
        calls, _, back = read(*READERS["object"], text)
        assert (calls, back) == ([], None), text
