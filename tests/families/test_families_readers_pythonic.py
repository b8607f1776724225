"""Calls as Python writes them."""

from schemas.events import FinishReason
from services.families.grammar.turn_state import CallOpener
from services.families.readers.pythonic import Pythonic
from tests.families.call_readers import ANYWAY, CUT, Calls, check_given_back, f, read
from tests.kit.every import for_each, for_rows

READER = Pythonic("<s>", ("<e>",))
OPENER = CallOpener("<s>", "<s>")
READ: list[tuple[str, Calls, str]] = [
    ("[f(a='x', b=1), g()]<e>", [f(a="x", b=1), ("g", {})], "<e>"),
    ("f(a='x')\ng( )\n<e>", [f(a="x"), ("g", {})], "<e>"),
    ("[ f (a = [1, (2,)], b={'k': None},) ]", [f(a=[1, [2]], b={"k": None})], ""),
    ("[mcp.read(q='it's')] and", [("mcp.read", {"q": "it's"})], " and"),
    ("f()\nDone.", [f()], "Done."),
    (
        "[f(a='''it's\n'b'''', b=\"\"\"\\n\"\"\", c='', d=''')]",
        [f(a="it's\n'b'", b="\n", c="", d="'")],
        "",
    ),
    ("[f(a=oops), f(a=1)]<e>", [CUT], "<e>"),
]


@for_rows(READ)
def test_calls_are_read(text: str, calls: Calls, rest: str) -> None:
    assert read(READER, OPENER, text) == (calls, rest, None)


@for_each(["[f('positional')]", "see below", "[1, 2]", "[f(a b)]", "f[0](x=1)"])
def test_text_that_is_not_a_call_is_given_back(text: str) -> None:
    check_given_back(READER, OPENER, text)


@for_rows(
    [
        ("[f(a=1), f(a='x", [f(a=1), CUT], [FinishReason.LENGTH]),
        ("[f(a='x", [CUT], ANYWAY),
        ("[f(a=1", [CUT], ANYWAY),
    ]
)
def test_cut_call_never_completes(text: str, calls: Calls, reasons: list[FinishReason]) -> None:
    for reason in reasons:
        assert read(READER, OPENER, text, reason)[0] == calls, reason


def test_call_cut_before_its_name_or_its_first_value_is_dropped() -> None:
    assert read(READER, OPENER, "[read_le", FinishReason.LENGTH) == ([], "", None)
    calls, _, _ = read(READER, OPENER, "[f(a=", FinishReason.LENGTH)
    assert [call for call in calls if call[1] is not None] == []
