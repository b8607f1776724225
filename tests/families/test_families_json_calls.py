from typing import Any

import pytest

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from services.families.grammar.turn import CallOpener
from services.families.readers.json_calls import Form, JsonCalls
from tests.kit.parser_cases import Block, read_body

TOOLS = [ToolSpec("f"), ToolSpec("g")]
OBJECT = JsonCalls(call_closers=("</call>",))
BARE = JsonCalls(strict=True)
LIST = JsonCalls(form=Form.LIST, call_closers=("</calls>",), ids=("id",))
ARGUMENTS = JsonCalls(form=Form.ARGUMENTS, call_closers=("```{ws}<end>", "<end>"))
KEYED = JsonCalls(form=Form.KEYED)
CALL = CallOpener("<call>", "<call>")
NAMED = CallOpener("<call f>", "<call", "f")


def read(
    grammar: JsonCalls,
    text: str,
    opener: CallOpener = CALL,
    reason: FinishReason = FinishReason.STOP,
) -> tuple[list[tuple[str, Any]], str, str | None]:
    """Names with arguments (None: never complete), the text left, the text given back; however the
    text is cut."""
    results = [read_body(grammar, text, TOOLS, opener, size, reason) for size in (1, 3, 1000)]
    assert results[0] == results[1] == results[2]
    blocks, rest, back = results[0]
    return [(block["name"], block.get("input")) for block in blocks], rest, back


@pytest.mark.parametrize(
    "text",
    [
        '\n{"name": "f", "arguments": {"a": 1}}\n</call>',
        '{"name":"f","arguments":{"a":1}}</call>',
        '{"arguments": {"a": 1}, "name": "f"}</call>',
        '{"id": 7, "x": [{}], "name": "f", "parameters": {"a": 1}, "y": "}"}</call>',
        '{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}</call>',
        '{"function": "f", "arguments": {"a": 1}}</call>',
        '{"name": "f", "arguments": "{\\"a\\": 1}"}</call>',
        '{"arguments": "{\\"a\\": 1}", "name": "f"}</call>',
        '{"name": "f", "arguments": {"a": 1,},}</call>',
        '{"name": "f", "arguments": {"a": 1}}}\n</call>',
        "{'name': 'f', 'arguments': {'a': 1}}</call>",
    ],
)
def test_object_with_name_and_arguments_is_a_call(text: str) -> None:
    assert read(OBJECT, text + " x") == ([("f", {"a": 1})], " x", None)


@pytest.mark.parametrize(
    "arguments",
    ["", ', "arguments": {}', ', "arguments": null', ', "arguments": ""', ', "arguments": "{}"'],
)
def test_call_without_arguments_is_read(arguments: str) -> None:
    assert read(OBJECT, f'{{"name": "f"{arguments}}}</call>')[0] == [("f", {})]


@pytest.mark.parametrize("member", ['"input": {"a": 1}', '"a": 1', '"name": "f", "a": 1'])
def test_call_with_arguments_under_another_key_never_completes(member: str) -> None:
    assert read(OBJECT, f'{{"name": "f", {member}}}</call>')[0] == [("f", None)]
    assert read(LIST, f'[{{"name": "g"}}, {{{member}, "name": "f"}}]</calls>')[0] == [
        ("g", {}),
        ("f", None),
    ]
    assert read(OBJECT, '{"type": "function", "id": "x", "index": 0, "name": "f"}</call>')[0] == [
        ("f", {})
    ]


def test_a_closer_inside_a_string_is_payload() -> None:
    assert read(OBJECT, '{"name": "f", "arguments": {"a": "</call>"}}</call>')[0] == [
        ("f", {"a": "</call>"})
    ]


def test_the_closer_decides_but_for_a_model_that_stopped() -> None:
    text = '{"name": "f", "arguments": {"a": 1}}'
    assert read(OBJECT, text)[0] == [("f", {"a": 1})]
    assert read(OBJECT, text, reason=FinishReason.LENGTH)[0] == [("f", None)]
    assert read(OBJECT, text + "\n<call>") == ([("f", {"a": 1})], "<call>", None)


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
@pytest.mark.parametrize(
    "text",
    [
        '{"name": "f", "arguments": {"a": "x',
        '{"name": "f", "arguments": {"a": 1}',
        '{"name": "f", "arguments": "{\\"a',
    ],
)
def test_cut_off_call_never_completes(text: str, reason: FinishReason) -> None:
    assert read(OBJECT, text, reason=reason)[0] == [("f", None)]


@pytest.mark.parametrize("text", ["{", '{"na', '{"name": "f', '{"name": "f", "arguments": '])
def test_call_cut_off_before_its_name_is_dropped(text: str) -> None:
    assert read(OBJECT, text) == ([], read(OBJECT, text)[1], None)


def test_a_broken_body_of_a_known_tool_is_a_call_that_never_completes() -> None:
    text = '{"name": "f", "arguments": {a: 1}}\n</call>\n<call>'
    assert read(OBJECT, text) == ([("f", None)], "</call>\n<call>", None)
    text = '{"name": "f", "arguments": {"a": oops}}\n<call>{'
    assert read(OBJECT, text) == ([("f", None)], "<call>{", None)


@pytest.mark.parametrize(
    "text",
    ['{"name": <function-name>, "arguments": …}', "{...}", '{"name": "unknown", "arguments": 1}'],
)
def test_body_that_is_not_a_call_is_returned_as_text(text: str) -> None:
    blocks, rest, back = read(OBJECT, text + "</call>")
    assert blocks == []
    assert back is not None
    assert back + rest == "<call>" + text + "</call>"


def test_list_of_calls_is_read() -> None:
    text = '[{"id": "x1", "name": "f", "arguments": {}}, {"name": "h", "arguments": {"a": [1]}, "id": "late"}]</calls>'
    assert read(LIST, text) == ([("f", {}), ("h", {"a": [1]})], "</calls>", None)
    blocks: list[Block] = read_body(LIST, text, TOOLS, CALL)[0]
    assert [block["id"] for block in blocks] == ["x1", None]


def test_each_call_of_a_list_is_complete_at_its_own_end() -> None:
    text = '[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"a": "x'
    assert read(LIST, text, reason=FinishReason.LENGTH)[0] == [("f", {}), ("g", None)]


def test_one_object_may_replace_a_list() -> None:
    assert read(LIST, '{"name": "f", "arguments": {}}</calls>') == ([("f", {})], "", None)


def test_list_without_calls_is_text() -> None:
    assert read(LIST, "[1, 2]")[0] == []
    assert read(LIST, "[1, 2]")[2] == "<call>["


def test_arguments_after_a_name_are_read() -> None:
    assert read(ARGUMENTS, '\n{"a": "```"}\n```<end>x', NAMED) == ([("f", {"a": "```"})], "x", None)
    assert read(ARGUMENTS, '"{\\"a\\": 1}"<end>', NAMED)[0] == [("f", {"a": 1})]
    assert read(ARGUMENTS, "<end>x", NAMED) == ([("f", {})], "x", None)
    assert read(ARGUMENTS, "what<end>", NAMED) == ([("f", None)], "<end>", None)


@pytest.mark.parametrize(
    "text",
    ['"what"<end>', '"[1]"<end>', '"{} x"<end>', '"\'a {}"<end>', "12<end>", '"{\\"a\\": }"<end>'],
)
def test_arguments_that_are_not_an_object_never_complete(text: str) -> None:
    assert read(ARGUMENTS, text, NAMED)[0] == [("f", None)]


def test_call_id_comes_from_the_marker() -> None:
    ((block,), _, _) = read_body(
        ARGUMENTS, "{}<end>", TOOLS, CallOpener("<call>", "<call>", "f", "functions.f:3")
    )
    assert block["id"] == "functions.f:3"


def test_a_closer_that_is_a_stop_token_may_be_missing() -> None:
    grammar = JsonCalls(form=Form.ARGUMENTS, call_closers=("<|call|>",), stop_closes=True)
    assert read(grammar, "", NAMED)[0] == [("f", {})]
    assert read(grammar, "", NAMED, FinishReason.LENGTH)[0] == []
    assert read(grammar, "{}", NAMED)[0] == [("f", {})]
    assert read(grammar, "{}", NAMED, FinishReason.LENGTH)[0] == [("f", None)]


def test_name_may_be_the_only_key() -> None:
    assert read(KEYED, '[{"f": {"a": 1}}, {"g": {}}]')[0] == [("f", {"a": 1}), ("g", {})]


def test_bare_json_is_a_call_only_if_it_has_all_of_one() -> None:
    opener = CallOpener("{", "{")
    call = '"name": "new", "parameters": {"a": 1}} x'
    assert read(BARE, call, opener) == ([("new", {"a": 1})], " x", None)
    assert read(BARE, '"name": "f"}', opener)[0] == [("f", {})]
    for text in ('"answer": 42}', '"name": "Bob"}', '"name": "f", "age": 3}', '"name": 3}'):
        blocks, rest, back = read(BARE, text, opener)
        assert blocks == []
        assert back is not None
        assert back + rest == "{" + text


def test_surrogates_survive_a_second_encoding() -> None:
    text = '{"name": "f", "arguments": "{\\"a\\": \\"\\ud83d\\ude00 \\ud83d\\"}"}</call>'
    assert read(OBJECT, text)[0] == [("f", {"a": "😀 \ud83d"})]
    assert read(OBJECT, '{"name": "\\ud83dx"}</call>')[0] == [("\ufffdx", {})]


def test_a_string_of_encoded_arguments_is_decoded_once() -> None:
    text = '{"name": "f", "arguments": "{\\"a\\": \\"\\\\ud83d\\\\ude00 \\u00e9\\\\n\\"}"}</call>'
    assert read(OBJECT, text)[0] == [("f", {"a": "😀 é\n"})]
