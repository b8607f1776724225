"""Messages with headers (gpt-oss, Muse Glimmer, Inkling), and calls with bare text (CWM)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from tests.kit.every import for_rows
from tests.kit.families import Said, read_exactly

CALL = '<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{"a": 1}<|call|>'
FINAL = "<|channel|>final<|message|>Done.<|return|>"


@for_rows(
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
    ]
)
def test_harmony_messages_are_read(raw: str, expected: list[Any]) -> None:
    assert read_exactly("gpt_oss", raw) == expected


def test_no_piece_of_a_call_is_text() -> None:
    for end in range(1, len(CALL)):
        got = read_exactly("gpt_oss", CALL[:end], FinishReason.LENGTH)
        assert got in ([], [("ping", None)]), CALL[:end]


def test_call_is_text_if_calls_are_not_allowed() -> None:
    assert read_exactly("gpt_oss", CALL, calls_as_text=True) == [("text", '{"a": 1}')]
    assert read_exactly("gpt_oss", CALL, tools=[]) == [("text", '{"a": 1}')]


def test_a_prompt_may_end_inside_reasoning() -> None:
    raw = "Hm.<|end|><|start|>assistant" + FINAL
    assert read_exactly("gpt_oss", raw, in_reasoning=True) == [
        ("reasoning", "Hm."),
        ("text", "Done."),
    ]


def test_message_to_another_recipient_is_dropped() -> None:
    raw = " to=developer<|message|>log<|eom|><|start|>assistant to=user<|message|>Hi.<|eot|>"
    assert read_exactly("muse_glimmer", raw) == [("text", "Hi.")]


def test_markup_in_a_message_to_the_user_is_text() -> None:
    quoted = (
        '<atem:function_calls>\n<atem:invoke name="ping">\n</atem:invoke>\n</atem:function_calls>'
    )
    assert read_exactly("muse_glimmer", f" to=user<|message|>{quoted}<|eot|>") == [("text", quoted)]


def test_message_may_have_several_calls() -> None:
    calls = '<atem:invoke name="ping">\n</atem:invoke>\n<atem:invoke name="functions.run">\n<atem:parameter name="cmd">ls</atem:parameter>\n</atem:invoke>'
    raw = f" to=functions<|message|>so <atem:function_calls>\n{calls}\n</atem:function_calls><|eom|><|start|>assistant to=user<|message|>Hi."
    assert read_exactly("muse_glimmer", raw) == [
        ("ping", {}),
        ("run", {"cmd": "ls"}),
        ("text", "Hi."),
    ]


def test_inkling_headers_are_read() -> None:
    call = '<|content_invoke_tool_json|>{"args": {"cmd": "ls"}, "name": "run"}'
    assert read_exactly("inkling", call) == [("run", {"cmd": "ls"})]
    assert read_exactly(
        "inkling", "run" + call + "<|end_message|><|message_model|><|content_text|>Hi."
    ) == [
        ("run", {"cmd": "ls"}),
        ("text", "Hi."),
    ]
    assert read_exactly("inkling", "ru", FinishReason.LENGTH) == []
    assert read_exactly("inkling", "ru") == [("text", "ru")]


# -- calls with a body of bare text: any text is read whole, and never in part

PIECES = st.lists(
    st.sampled_from(
        ["ls", "\n", " ", "</tool>", "<tool: ", "<tool: bash>\n", "{", '"', "\\", "é", "</think>"]
    ),
    max_size=8,
)
TEXTS = PIECES.map("".join)
BASH = ToolSpec("bash", schema={"properties": {"command": {"type": "string"}}})


def read_bare(raw: str, reason: FinishReason = FinishReason.STOP) -> list[Said]:
    return read_exactly("cwm", raw, reason, tools=[BASH, ToolSpec("ping")])


def is_plain(text: str) -> bool:
    """The text does not itself end a call, and is not one in JSON."""
    bare = text.strip()
    return (
        bool(bare)
        and bare != "null"
        and bare[0] != "{"
        and not bare.startswith("</tool>")
        and not any(
            not rest.strip() or rest.lstrip().startswith("<tool: ")
            for rest in f"\n{text}".split("\n</tool>")[1:]
        )
    )


@given(TEXTS.filter(is_plain))
def test_any_text_is_the_argument(text: str) -> None:
    assert read_bare(f"<tool: bash>\n{text}\n</tool>") == [("bash", {"command": text})]


@given(TEXTS.filter(is_plain), st.integers(0, 80))
def test_cut_text_is_never_a_complete_call(text: str, at: int) -> None:
    raw = f"<tool: bash>\n{text}\n</tool>"
    blocks = read_bare(raw[: len("<tool: bash>\n") + at % len(raw)], FinishReason.LENGTH)
    assert all(arguments is None for kind, arguments in blocks if kind == "bash")


def test_text_that_ends_a_call_starts_the_next_one() -> None:
    raw = "<tool: bash>\nls\n</tool>\n<tool: bash>\ndate\n</tool>\n"
    assert read_bare(raw) == [("bash", {"command": "ls"}), ("bash", {"command": "date"})]


@pytest.mark.parametrize("body", ["", "\n", "null", "{}"])
def test_empty_body_is_a_call_without_arguments(body: str) -> None:
    assert read_bare(f"<tool: ping>\n{body}\n</tool>") == [("ping", {})]
