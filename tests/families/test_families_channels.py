from typing import Any

import pytest

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from services.families import open_parser
from tests.kit.parser_cases import CHUNKINGS, fold, run

TOOLS = [ToolSpec("ping"), ToolSpec("run", schema={"properties": {"cmd": {"type": "string"}}})]


def blocks(
    family: str, raw: str, reason: FinishReason = FinishReason.STOP, **options: Any
) -> list[Any]:
    """(kind, text or arguments) of each block, calls with their name; the same however the text is
    cut."""
    options = {"tools": TOOLS, "in_reasoning": False, **options}
    results = [
        fold(run(open_parser(family, **options), cut(raw), reason)) for cut in CHUNKINGS.values()
    ]
    assert all(result == results[0] for result in results)
    return [
        (b["name"], b.get("input")) if b["type"] == "tool_use" else (b["type"], b["text"])
        for b in results[0]
    ]


CALL = '<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{"a": 1}<|call|>'
FINAL = "<|channel|>final<|message|>Done.<|return|>"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" + FINAL,
            [("reasoning", "Hm."), ("text", "Done.")],
        ),
        (CALL, [("ping", {"a": 1})]),
        (' to=functions.ping<|channel|>commentary json<|message|>{"a": 1}', [("ping", {"a": 1})]),
        (
            '<|channel|>commentary to=functions.ping <|constrain|>json{"a": 1}<|call|>',
            [("ping", {"a": 1})],
        ),
        (" to=functions.ping<|channel|>analysis code<|message|>{}<|call|>", [("ping", {})]),
        ("<|channel|>commentary to=functions.ping<|message|>", [("ping", {})]),
        (
            "<|channel|>commentary<|message|>So.<|end|><|start|>assistant" + CALL,
            [("text", "So."), ("ping", {"a": 1})],
        ),
        ("<|channel|>commentary to=user<|message|>So.<|end|>", [("text", "So.")]),
        ("<|message|>So.", [("text", "So.")]),
        (
            "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Done.",
            [("reasoning", "Hm."), ("text", "Done.")],
        ),
        (
            "<|channel|>analysis<|message|>Hm.<|start|>assistant" + FINAL,
            [("reasoning", "Hm."), ("text", "Done.")],
        ),
        (
            "<|channel|>final<|message|>Use <|x|> or <|channel|> and <|start|>.",
            [("text", "Use <|x|> or <|channel|> and <|start|>.")],
        ),
        (
            '<|channel|>final<|message|>The string <|channel|>comzq and "<|ch".',
            [("text", 'The string <|channel|>comzq and "<|ch".')],
        ),
        ("<|channel|>final Done.", [("text", " Done.")]),
        ("Just text.", [("text", "Just text.")]),
        ("", []),
        ("<|channel|>analysis<|message|> \n<|end|>", []),
    ],
)
def test_harmony_messages_are_read(raw: str, expected: list[Any]) -> None:
    assert blocks("gpt_oss", raw) == expected


@pytest.mark.parametrize("end", range(1, len(CALL)))
def test_no_piece_of_a_call_is_text(end: int) -> None:
    got = blocks("gpt_oss", CALL[:end], FinishReason.LENGTH)
    assert got in ([], [("ping", None)])


def test_call_is_text_if_calls_are_not_allowed() -> None:
    assert blocks("gpt_oss", CALL, calls_as_text=True) == [("text", '{"a": 1}')]
    assert blocks("gpt_oss", CALL, tools=[]) == [("text", '{"a": 1}')]


def test_a_prompt_may_end_inside_reasoning() -> None:
    raw = "Hm.<|end|><|start|>assistant" + FINAL
    assert blocks("gpt_oss", raw, in_reasoning=True) == [("reasoning", "Hm."), ("text", "Done.")]


def test_message_to_another_recipient_is_dropped() -> None:
    raw = " to=developer<|message|>log<|eom|><|start|>assistant to=user<|message|>Hi.<|eot|>"
    assert blocks("muse_glimmer", raw) == [("text", "Hi.")]


def test_markup_in_a_message_to_the_user_is_text() -> None:
    quoted = (
        '<atem:function_calls>\n<atem:invoke name="ping">\n</atem:invoke>\n</atem:function_calls>'
    )
    assert blocks("muse_glimmer", f" to=user<|message|>{quoted}<|eot|>") == [("text", quoted)]


def test_message_may_have_several_calls() -> None:
    calls = '<atem:invoke name="ping">\n</atem:invoke>\n<atem:invoke name="functions.run">\n<atem:parameter name="cmd">ls</atem:parameter>\n</atem:invoke>'
    raw = f" to=functions<|message|>so <atem:function_calls>\n{calls}\n</atem:function_calls><|eom|><|start|>assistant to=user<|message|>Hi."
    assert blocks("muse_glimmer", raw) == [("ping", {}), ("run", {"cmd": "ls"}), ("text", "Hi.")]


def test_inkling_headers_are_read() -> None:
    call = '<|content_invoke_tool_json|>{"args": {"cmd": "ls"}, "name": "run"}'
    assert blocks("inkling", call) == [("run", {"cmd": "ls"})]
    assert blocks(
        "inkling", "run" + call + "<|end_message|><|message_model|><|content_text|>Hi."
    ) == [
        ("run", {"cmd": "ls"}),
        ("text", "Hi."),
    ]
    assert blocks("inkling", "ru", FinishReason.LENGTH) == []
    assert blocks("inkling", "ru") == [("text", "ru")]
