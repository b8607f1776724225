"""Calls with a tag for each argument; the schema has the types of the values."""

from typing import Any

from schemas.events import FinishReason
from services.families.grammar.call_marker import CallReader
from services.families.grammar.turn_state import CallOpener
from services.families.readers.parameters import Parameters
from tests.families.call_readers import CUT, Calls, f, read, read_blocks
from tests.kit.every import for_rows
from tests.kit.parser_cases import FORCED


def tags(**options: Any) -> Parameters:
    usual = {
        "parameter_tags": ("<p={key}>",),
        "parameter_closers": ("</p>",),
        "call_closers": ("</f>",),
    }
    return Parameters(**{**usual, **options})


KINDS_OF_TAGS = (
    '<p k="{key}" s="{bool}">',
    '<p k="{key}" t="{word}">',
    '<p k="{key}">',
)
PAIRS = tags(
    parameter_tags=("<k>{key}</k>{ws}<v>", "<k>{key}</k>"),
    parameter_closers=("</v>",),
    call_closers=("</call>",),
    next_markers=("<call>",),
)
READERS: dict[str, tuple[CallReader, CallOpener]] = {
    "tags": (tags(next_markers=("</call>", "<call>"), json=("{",), unwrap=("arguments",)), FORCED),
    "framed tags": (tags(frame=True), FORCED),
    "typed tags": (tags(parameter_tags=KINDS_OF_TAGS), FORCED),
    "pairs": (PAIRS, FORCED),
    "tags to a stop": (tags(call_closers=("<|call|>",), stop_closes=True), FORCED),
    "renamed tags": (
        tags(unescape=lambda text: text.replace("&amp;", "&"), rename=("ns.",)),
        CallOpener(name="ns.f"),
    ),
}
MARKS = ("a `</p>` b", "<p=", "<p=zzz>", "is `<p=s>`.", "</f> x", "</", "<p=zzz>y</p> x")
DAMAGED = ("</p>", "<p=s>", "</p>\nx<p=zzz>y", "a </p> b", "x<p=s>y", "x</p>\n</p")
"""A marker is damaged, or the value has the text of one."""
BLANKS = ("", "\n", "a\n", "\n\na", "  a\t", 'say "hi" \\ \x00 é🚢', "a\r\n")
READ: list[tuple[str, str, Calls, str]] = [
    # one tag for each argument; the schema has the types
    (
        "tags",
        "\n<p=s>12</p>\n<p=n>12</p><p=b>True</p><p=o>{'a': 1}</p><p=other>7</p>\n</f> rest",
        [f(s="12", n=12, b=True, o={"a": 1}, other="7")],
        " rest",
    ),
    ("tags", "\n</f>x", [f()], "x"),
    ("tags", "<p=maybe>null</p></f>", [f(maybe=None)], ""),
    *[("tags", f"<p=maybe>{text}</p></f>", [f(maybe=text)], "") for text in ("nul", "nullx", "")],
    *[("tags", f"<p=s>{blank}</p></f>", [f(s=blank)], "") for blank in BLANKS],
    *[("framed tags", f"<p=s>\n{blank}\n</p>\n</f>", [f(s=blank)], "") for blank in BLANKS],
    *[("tags", f"<p=s>{mark}</p><p=n>1</p></f>", [f(s=mark, n=1)], "") for mark in MARKS],
    *[("tags", f"<p=s>{mark}</p><p=n>1</p></f>", [CUT], "") for mark in DAMAGED],
    # the tag of an argument that is missing ends an open value that is whole by its type
    ("tags", "<p=n>4<p=s>x</p></f>", [f(n=4, s="x")], ""),
    # a string that holds the tag of an argument completes only if that argument follows
    ("tags", "<p=s>3.5<p=n>4</p><p=n>4</p></f>", [f(s="3.5<p=n>4", n=4)], ""),
    ("framed tags", "<p=s>\nIt is <p=n>.\n</p>\n</f>", [CUT], ""),
    ("tags", "<p=s>x</f>\n</call>", [CUT], "\n</call>"),
    ("tags", "<p=n>1</f>\n</call>", [f(n=1)], "\n</call>"),
    ("tags", "so: <p <b> <p=s>x</p><p=n>1</p></f>", [CUT], ""),
    ("tags", "\n</call>", [CUT], "</call>"),
    ("tags", "<p=s>x</p>\n</call>", [f(s="x")], "</call>"),
    ("tags", "<p=s>x</p>\n<call> y", [f(s="x")], "<call> y"),
    ("tags", '\n{"s": "</f>", "n": 1,}\n</f>x', [f(s="</f>", n=1)], "x"),
    ("tags", '<p=arguments>{"s": "x"}</p></f>', [f(s="x")], ""),
    ("tags", '<p=arguments>{"s": "x"}</p><p=n>1</p></f>', [f(arguments={"s": "x"}, n=1)], ""),
    ("tags", "<p=s>x</p>\n", [f(s="x")], ""),
    ("tags", "<p=s>drift</f>", [CUT], ""),
    ("tags", '<p=o>{"a": 1</p></f>', [CUT], ""),
    ("tags to a stop", "", [f()], ""),
    (  # stated types decide
        "typed tags",
        '<p k="s" s="true">12</p><p k="n" s="false">12</p>'
        '<p k="q" s="false">1.2.3</p><p k="t" s="false">12</p></f>',
        [f(s="12", n=12, q="1.2.3", t="12")],
        "",
    ),
    (
        "typed tags",
        '<p k="a" t="string">[1]</p><p k="b" t="array">[1]</p>'
        '<p k="c" t="null">null</p><p k="t" t="string">"x"</p></f>',
        [f(a="[1]", b=[1], c=None, t='"x"')],
        "",
    ),
    ("pairs", "<k>s</k>x</v>\n<k>t</k>\n<v>y</v></call>", [f(s="x", t="y")], ""),
    ("renamed tags", "<p=a&amp;b>1</p></f>", [("f", {"a&b": "1"})], ""),
]


@for_rows(READ)
def test_calls_are_read(reader: str, text: str, calls: Calls, rest: str) -> None:
    assert read(*READERS[reader], text) == (calls, rest, None)


@for_rows(
    [
        ("tags", "<p=s>x</p>\n", FinishReason.LENGTH, '{"s": "x"'),
        ("tags", "<p=n>4", FinishReason.LENGTH, '{"n": '),
        ("tags to a stop", "", FinishReason.LENGTH, ""),
        ("tags", "<p=s>x", FinishReason.STOP, '{"s": "x'),
        ("tags", "<p=s>x</p><p=t", FinishReason.STOP, '{"s": "x"'),
        ("tags", "", FinishReason.STOP, ""),
        ("tags", '{"s": [}</f>', FinishReason.STOP, '{"s": ['),
        ("tags", "<p=s>3.5<p=n>4</p></f>", FinishReason.STOP, '{"s": "3.5<p=n>4"'),
    ]
)
def test_what_is_said_of_a_call_that_never_completes(
    reader: str, text: str, reason: FinishReason, said: str
) -> None:
    ((block,), _, _) = read_blocks(*READERS[reader], text, reason)
    assert (block["complete"], block["text"]) == (False, said)
