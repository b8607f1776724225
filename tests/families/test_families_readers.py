"""The readers of calls: what each makes of a text, however the text is cut."""

from typing import Any

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from services.families.grammar.call_marker import CallReader
from services.families.grammar.turn_state import CallOpener
from services.families.readers.json_calls import Form, JsonCalls
from services.families.readers.nested import Nested
from services.families.readers.parameters import Parameters
from services.families.readers.pythonic import Pythonic
from tests.kit.every import for_each, for_rows
from tests.kit.parser_cases import FORCED, Block, read_body

POINT = {"type": "object", "properties": {"x": {"type": "number"}, "label": {"type": "string"}}}
SCHEMA = {
    "$defs": {"Point": POINT},
    "properties": {
        "s": {"type": "string"},
        "t": {"type": "string"},
        "n": {"type": "integer"},
        "b": {"type": "boolean"},
        "maybe": {"type": ["string", "null"]},
        "o": {"type": "object"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "nums": {"type": "array", "items": {"type": "number"}},
        "point": {"$ref": "#/$defs/Point"},
        "points": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
    },
}
TOOLS = [ToolSpec("f", schema=SCHEMA), ToolSpec("g"), ToolSpec("mcp.read")]
CALL = CallOpener("<call>", "<call>")
NAMED = CallOpener("<call f>", "<call", "f")
N = "]~["
"""The mark of nested tags; rows have NS for it."""


def tags(**options: Any) -> Parameters:
    usual = {
        "parameter_tags": ("<p={key}>",),
        "parameter_closers": ("</p>",),
        "call_closers": ("</f>",),
    }
    return Parameters(**{**usual, **options})


def arguments_until(*closers: str, **options: Any) -> JsonCalls:
    return JsonCalls(form=Form.ARGUMENTS, call_closers=closers, **options)


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
    "object": (JsonCalls(call_closers=("</call>",)), CALL),
    "bare object": (JsonCalls(strict=True), CallOpener("{", "{")),
    "list": (JsonCalls(form=Form.LIST, call_closers=("</calls>",), ids=("id",)), CALL),
    "arguments": (arguments_until("```{ws}<end>", "<end>"), NAMED),
    "arguments to a stop": (arguments_until("<|call|>", stop_closes=True), NAMED),
    "keyed": (JsonCalls(form=Form.KEYED), CALL),
    "tags": (tags(next_markers=("</call>", "<call>"), json=("{",), unwrap=("arguments",)), FORCED),
    "framed tags": (tags(frame=True), FORCED),
    "typed tags": (tags(parameter_tags=KINDS_OF_TAGS), FORCED),
    "pairs": (PAIRS, FORCED),
    "tags to a stop": (tags(call_closers=("<|call|>",), stop_closes=True), FORCED),
    "renamed tags": (
        tags(unescape=lambda text: text.replace("&amp;", "&"), rename=("ns.",)),
        CallOpener(name="ns.f"),
    ),
    "nested": (Nested(N, next_markers=("</calls>", "<invoke name=")), CallOpener(name="f")),
    "python": (Pythonic("<s>", ("<e>",)), CallOpener("<s>", "<s>")),
}
Calls = list[tuple[str, Any]]
CUT = ("f", None)
"""A call that never completes."""


def f(**arguments: Any) -> tuple[str, Any]:
    return "f", arguments


def read_blocks(
    reader: str, text: str, reason: FinishReason, opener: CallOpener | None = None
) -> tuple[list[Block], str, str | None]:
    """The blocks, the text left and the text given back; the same however the text is cut."""
    body, usual = READERS[reader]
    text = text.replace("NS", N)
    results = [read_body(body, text, TOOLS, opener or usual, size, reason) for size in (1, 3, 1000)]
    assert results[0] == results[1] == results[2]
    return results[0]


def read(
    reader: str,
    text: str,
    reason: FinishReason = FinishReason.STOP,
    opener: CallOpener | None = None,
) -> tuple[Calls, str, str | None]:
    """Names with arguments, the text left and the text given back."""
    blocks, rest, back = read_blocks(reader, text, reason, opener)
    return [(block["name"], block.get("input")) for block in blocks], rest, back


# -- calls of a model that stopped by itself

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
MARKS = ("a `</p>` b", "<p=", "<p=zzz>", "is `<p=s>`.", "</f> x", "</", "<p=zzz>y</p> x")
DAMAGED = ("</p>", "<p=s>", "</p>\nx<p=zzz>y", "a </p> b", "x<p=s>y", "x</p>\n</p")
"""A marker is damaged, or the value has the text of one."""
BLANKS = ("", "\n", "a\n", "\n\na", "  a\t", 'say "hi" \\ \x00 é🚢', "a\r\n")
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
    # tags in tags
    *[
        ("nested", f"\n{text}\nNS</invoke> x", [("f", arguments)], " x")
        for text, arguments in (
            ("NS<s>12NS</s>NS<n>12NS</n>NS<other>3NS</other>", {"s": "12", "n": 12, "other": "3"}),
            (
                "NS<s>  <item>1</item></invoke> a]<b NS<x>\nNS</s>",
                {"s": f"  <item>1</item></invoke> a]<b {N}<x>\n"},
            ),
            ("NS<maybe>nullNS</maybe>", {"maybe": None}),
            ("NS<tags>NS<item>1NS</item>NS<item>bNS</item>NS</tags>", {"tags": ["1", "b"]}),
            ("NS<tags>NS</tags>NS<o>NS</o>NS<s>NS</s>", {"tags": [], "o": {}, "s": ""}),
            ("NS<tags>oneNS</tags>", {"tags": ["one"]}),
            ("NS<nums>NS<item>-3NS</item>NS<item>2.50NS</item>NS</nums>", {"nums": [-3, 2.5]}),
            (
                "NS<point>NS<x>1NS</x>NS<label>2NS</label>NS</point>",
                {"point": {"x": 1, "label": "2"}},
            ),
            (
                "NS<points>NS<item>NS<x>1NS</x>NS</item>NS<item>NS<x>2NS</x>NS</item>NS</points>",
                {"points": [{"x": 1}, {"x": 2}]},
            ),
            (
                "NS<o>NS<b>NS<c>trueNS</c>NS<d>007NS</d>NS</b>NS</o>",
                {"o": {"b": {"c": True, "d": "007"}}},
            ),
            ("NS<o>NS<a>1NS</a>NS<a>2NS</a>NS</o>", {"o": {"a": [1, 2]}}),
            ("NS<o>so NS<a>1NS</a>NS</o>", None),
            ("NS<n>NS<n>1NS</n>NS</n>", None),
            ("NS<s>aNS</s>NS</s>", None),
            ("NS<n>1NS</n>n>1NS</n>", None),
            ("NS<n>1NS</n>NS<s>xNS</s>NS<n>2NS</n>", None),
            ("NS<s>aNS</s>NS<s>bNS</s>", None),
            ("", {}),
        )
    ],
    ("nested", "NS<n>1NS</n>\nNS</calls>", [f(n=1)], f"{N}</calls>"),
    ("nested", "NS<n>1NS</n>\n", [f(n=1)], ""),
    *[("nested", text, [CUT], "") for text in ("NS<s>cut", "NS<n>1", "NS<o>NS<a>1NS</a>", "")],
    ("nested", "NS<s>xNS</s>NS<n", [CUT], f"{N}<n"),
    # Python
    ("python", "[f(a='x', b=1), g()]<e>", [f(a="x", b=1), ("g", {})], "<e>"),
    ("python", "f(a='x')\ng( )\n<e>", [f(a="x"), ("g", {})], "<e>"),
    ("python", "[ f (a = [1, (2,)], b={'k': None},) ]", [f(a=[1, [2]], b={"k": None})], ""),
    ("python", "[mcp.read(q='it's')] and", [("mcp.read", {"q": "it's"})], " and"),
    ("python", "f()\nDone.", [f()], "Done."),
    (
        "python",
        "[f(a='''it's\n'b'''', b=\"\"\"\\n\"\"\", c='', d=''')]",
        [f(a="it's\n'b'", b="\n", c="", d="'")],
        "",
    ),
    ("python", "[f(a=oops), f(a=1)]<e>", [CUT], "<e>"),
]


@for_rows(READ)
def test_calls_are_read(reader: str, text: str, calls: Calls, rest: str) -> None:
    assert read(reader, text) == (calls, rest, None)


NOT_OBJECTS = ('"what"', '"[1]"', '"{} x"', '"\'a {}"', "12", '"{\\"a\\": }"')


@for_each(NOT_OBJECTS)
def test_arguments_that_are_not_an_object_never_complete(text: str) -> None:
    assert read("arguments", text + "<end>")[0] == [CUT]


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
        ("python", "[f('positional')]"),
        ("python", "see below"),
        ("python", "[1, 2]"),
        ("python", "[f(a b)]"),
        ("python", "f[0](x=1)"),
    ]
)
def test_text_that_is_not_a_call_is_given_back(reader: str, text: str) -> None:
    calls, rest, back = read(reader, text)
    assert calls == []
    assert back is not None
    assert back + rest == READERS[reader][1].text + text


@for_rows(
    [
        ('NS<invoke name="f">s>', "lsNS</s>NS</invoke>", {"s": "ls"}),
        ('NS<invoke name="f">\nn>', "4NS</n>NS</invoke>", {"n": 4}),
    ]
)
def test_the_first_opener_may_be_swallowed(
    opener: str, text: str, arguments: dict[str, Any]
) -> None:
    swallowed = CallOpener(opener, "", "f")
    assert read("nested", text, opener=swallowed) == ([("f", arguments)], "", None)


def test_call_ids_come_from_the_call_or_its_marker() -> None:
    calls = (
        '[{"id": "x1", "name": "f", "arguments": {}}, {"name": "g", "arguments": {}, "id": "late"}]'
    )
    blocks = read_blocks("list", calls, FinishReason.STOP)[0]
    assert [block["id"] for block in blocks] == ["x1", None]
    marker = CallOpener("<call>", "<call>", "f", "functions.f:3")
    ((block,), _, _) = read_blocks("arguments", "{}<end>", FinishReason.STOP, marker)
    assert block["id"] == "functions.f:3"


# -- calls that are cut


ANYWAY = (FinishReason.LENGTH, FinishReason.STOP)


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
        ("nested", "NS<n>1NS</n>\n", [CUT], [FinishReason.LENGTH]),
        ("python", "[f(a=1), f(a='x", [f(a=1), CUT], [FinishReason.LENGTH]),
        ("python", "[f(a='x", [CUT], ANYWAY),
        ("python", "[f(a=1", [CUT], ANYWAY),
    ]
)
def test_cut_call_never_completes(
    reader: str, text: str, calls: Calls, reasons: list[FinishReason]
) -> None:
    for reason in reasons:
        assert read(reader, text, reason)[0] == calls, reason


def test_call_cut_before_its_name_is_dropped() -> None:
    for text in ("{", '{"na', '{"name": "f', '{"name": "f", "arguments": '):
        calls, _, back = read("object", text)
        assert (calls, back) == ([], None), text
    assert read("python", "[read_le", FinishReason.LENGTH) == ([], "", None)
    calls, _, _ = read("python", "[f(a=", FinishReason.LENGTH)
    assert [call for call in calls if call[1] is not None] == []


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
    ((block,), _, _) = read_blocks(reader, text, reason)
    assert (block["complete"], block["text"]) == (False, said)
