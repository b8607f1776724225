from typing import Any

import pytest

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from services.families.grammar.turn import CallOpener
from services.families.readers.parameters import Parameters
from tests.kit.parser_cases import read_body

SCHEMA = {
    "properties": {
        "s": {"type": "string"},
        "t": {"type": "string"},
        "n": {"type": "integer"},
        "b": {"type": "boolean"},
        "maybe": {"type": ["string", "null"]},
        "o": {"type": "object"},
    }
}
TOOLS = [ToolSpec("f", schema=SCHEMA)]
INLINE = Parameters(
    parameter_tags=("<p={key}>",),
    parameter_closers=("</p>",),
    call_closers=("</f>",),
    next_markers=("</call>", "<call>"),
    json=("{",),
    unwrap=("arguments",),
)
FRAMED = Parameters(
    parameter_tags=("<p={key}>",), parameter_closers=("</p>",), call_closers=("</f>",), frame=True
)
STATED = Parameters(
    parameter_tags=('<p k="{key}" s="{bool}">', '<p k="{key}" t="{word}">', '<p k="{key}">'),
    parameter_closers=("</p>",),
    call_closers=("</f>",),
)
PAIRS = Parameters(
    parameter_tags=("<k>{key}</k>{ws}<v>", "<k>{key}</k>"),
    parameter_closers=("</v>",),
    call_closers=("</call>",),
    next_markers=("<call>",),
)


def whole(grammar: Parameters, text: str) -> tuple[Any, str]:
    """The arguments of a call that is whole, and the text left; the same however the text is
    cut."""
    results = [read_body(grammar, text, TOOLS, size=size) for size in (1, 3, 1000)]
    assert results[0] == results[1] == results[2]
    ((block,), rest, back) = results[0]
    assert (block["name"], block["complete"], back) == ("f", True, None)
    return block["input"], rest


def cut(grammar: Parameters, text: str, reason: FinishReason = FinishReason.LENGTH) -> str:
    """What was said of a call that is never complete."""
    results = [read_body(grammar, text, TOOLS, size=size, reason=reason) for size in (1, 3, 1000)]
    assert results[0] == results[1] == results[2]
    ((block,), _, _) = results[0]
    assert not block["complete"]
    return str(block["text"])


def test_values_get_their_schema_s_types() -> None:
    text = "\n<p=s>12</p>\n<p=n>12</p><p=b>True</p><p=o>{'a': 1}</p><p=other>7</p>\n</f> rest"
    assert whole(INLINE, text) == (
        {"s": "12", "n": 12, "b": True, "o": {"a": 1}, "other": "7"},
        " rest",
    )


def test_call_without_arguments_is_read() -> None:
    assert whole(INLINE, "\n</f>x") == ({}, "x")


@pytest.mark.parametrize(
    ("text", "value"), [("null", None), ("nul", "nul"), ("nullx", "nullx"), ("", ""), ("hi", "hi")]
)
def test_nullable_string_is_null_or_text(text: str, value: str | None) -> None:
    assert whole(INLINE, f"<p=maybe>{text}</p></f>")[0] == {"maybe": value}


@pytest.mark.parametrize(
    "value", ["", "\n", "a\n", "\n\na", "  a\t", "a\n\n", 'say "hi" \\ \x00 é🚢', "a\r\n"]
)
def test_whitespace_is_exact_except_for_the_frame(value: str) -> None:
    assert whole(INLINE, f"<p=s>{value}</p></f>")[0] == {"s": value}
    assert whole(FRAMED, f"<p=s>\n{value}\n</p>\n</f>")[0] == {"s": value}


@pytest.mark.parametrize(
    "value", ["a </p> b", "</p>", "<p=", "<p=zzz>", "<p=s>", "</f> x", "<", "</", "</p>\nx<p=zzz>y"]
)
def test_a_tag_s_text_inside_a_value_is_text(value: str) -> None:
    assert whole(INLINE, f"<p=s>{value}</p><p=n>1</p></f>")[0] == {"s": value, "n": 1}


def test_missing_parameter_ends_an_open_value_that_is_whole_by_its_type() -> None:
    assert whole(INLINE, "<p=n>4<p=s>x</p></f>")[0] == {"n": 4, "s": "x"}
    assert whole(FRAMED, "<p=n>\n4\n<p=s>\nx\n</p>\n</f>")[0] == {"n": 4, "s": "x"}


def test_string_that_holds_the_tag_of_a_parameter_completes_only_if_that_parameter_follows() -> (
    None
):
    """Otherwise the string may have ended before the tag, without its closer: the call is not
    dispatched."""
    assert whole(INLINE, "<p=s>3.5<p=n>4</p><p=n>4</p></f>")[0] == {"s": "3.5<p=n>4", "n": 4}
    assert cut(INLINE, "<p=s>3.5<p=n>4</p></f>", FinishReason.STOP) == '{"s": "3.5<p=n>4"'
    assert (
        cut(FRAMED, "<p=s>\nx\n<p=n>\n4\n</p>\n</f>", FinishReason.STOP) == '{"s": "x\\n<p=n>\\n4"'
    )
    assert whole(FRAMED, "<p=s>\nIt is <p=n>.\n</p>\n</f>")[0] == {"s": "It is <p=n>."}


def test_end_of_the_call_ends_an_open_value() -> None:
    assert whole(INLINE, "<p=s>x</f>\n</call>") == ({"s": "x"}, "\n</call>")


def test_noise_before_parameters_is_dropped() -> None:
    assert whole(INLINE, "so: <p <b> <p=s>x</p><p=n>1</p></f>")[0] == {"s": "x", "n": 1}


@pytest.mark.parametrize(
    "text", ['<p="s">x</p></f>', '<p=n>1</p><p="s">x</p></f>', "<p=>x</p><p=n>1</p></f>"]
)
def test_call_with_a_malformed_key_never_completes(text: str) -> None:
    cut(INLINE, text, FinishReason.STOP)


def test_call_without_arguments_and_closer_before_the_next_call_never_completes() -> None:
    opener = CallOpener("<call> <f>", "<call>", "f")
    (block,), rest, _ = read_body(INLINE, "<call> <f>", TOOLS, opener)
    assert (block["complete"], rest) == (False, "<call> <f>")
    assert whole(INLINE, "\n</call>") == ({}, "</call>")


def test_marker_after_the_call_ends_it_and_is_not_consumed() -> None:
    assert whole(INLINE, "<p=s>x</p>\n</call>") == ({"s": "x"}, "</call>")
    assert whole(INLINE, "<p=s>x</p>\n<call> y") == ({"s": "x"}, "<call> y")


def test_json_may_replace_parameters() -> None:
    assert whole(INLINE, '\n{"s": "</f>", "n": 1,}\n</f>x') == ({"s": "</f>", "n": 1}, "x")
    assert cut(INLINE, '{"s": [}</f>', FinishReason.STOP) == '{"s": ['


def test_single_undeclared_parameter_may_hold_all_arguments() -> None:
    assert whole(INLINE, '<p=arguments>{"s": "x"}</p></f>')[0] == {"s": "x"}
    assert whole(INLINE, '<p=arguments>{"s": "x"}</p><p=n>1</p></f>')[0] == {
        "arguments": {"s": "x"},
        "n": 1,
    }
    assert whole(INLINE, "<p=arguments>x</p></f>")[0] == {"arguments": "x"}


def test_stated_types_decide() -> None:
    text = '<p k="s" s="true">12</p><p k="n" s="false">12</p><p k="q" s="false">1.2.3</p><p k="t" s="false">12</p></f>'
    assert whole(STATED, text)[0] == {"s": "12", "n": 12, "q": "1.2.3", "t": "12"}
    text = '<p k="a" t="string">[1]</p><p k="b" t="array">[1]</p><p k="c" t="null">null</p><p k="t" t="string">"x"</p></f>'
    assert whole(STATED, text)[0] == {"a": "[1]", "b": [1], "c": None, "t": '"x"'}


def test_value_opener_may_be_missing() -> None:
    assert whole(PAIRS, "<k>s</k>x</v>\n<k>t</k>\n<v>y</v></call>")[0] == {"s": "x", "t": "y"}


def test_call_is_complete_at_the_end_only_if_the_model_stopped_by_itself() -> None:
    assert whole(INLINE, "<p=s>x</p>\n")[0] == {"s": "x"}
    assert cut(INLINE, "<p=s>x</p>\n") == '{"s": "x"'
    assert cut(INLINE, "<p=s>x", FinishReason.STOP) == '{"s": "x'
    assert cut(INLINE, "<p=s>x</p", FinishReason.STOP) == '{"s": "x</p'
    assert cut(INLINE, "<p=s>x</p><p=t", FinishReason.STOP) == '{"s": "x"'
    assert cut(INLINE, "", FinishReason.STOP) == ""
    assert cut(INLINE, "<p=n>4") == '{"n": '
    assert cut(INLINE, "<p=s>drift</f>") == '{"s": "drift'
    assert whole(INLINE, "<p=s>drift</f>")[0] == {"s": "drift"}


def test_attributes_are_unescaped_and_names_mapped() -> None:
    grammar = Parameters(
        parameter_tags=("<p={key}>",),
        parameter_closers=("</p>",),
        call_closers=("</f>",),
        unescape=lambda t: t.replace("&amp;", "&"),
        rename=("ns.",),
    )
    ((block,), _, _) = read_body(grammar, "<p=a&amp;b>1</p></f>", TOOLS, CallOpener(name="ns.f"))
    assert (block["name"], block["input"]) == ("f", {"a&b": "1"})


def test_a_closer_that_is_a_stop_token_may_be_missing() -> None:
    grammar = Parameters(
        parameter_tags=("<p={key}>",),
        parameter_closers=("</p>",),
        call_closers=("<|call|>",),
        stop_closes=True,
    )
    assert whole(grammar, "")[0] == {}
    assert cut(grammar, "") == ""


def test_a_string_streams() -> None:
    """Not a character more than what could be the closer is held back."""
    from services.families.grammar.turn import TurnState
    from services.families.tool_types import Tools

    turn = TurnState(Tools(TOOLS), reasoning=False, calls=True)
    reading = INLINE.read(turn, CallOpener(name="f"))
    next(reading)
    text = "<p=s>some < text </p"
    for end in range(1, len(text) + 1):
        turn.scanner.extend(text[end - 1])
        next(reading)
        turn.blocks.drain()
    assert turn.blocks.length == len('{"s": "some < text ')
