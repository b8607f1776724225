"""Calls with tags in tags, all with a mark of their own."""

from typing import Any

from schemas.events import FinishReason
from services.families.grammar.turn_state import CallOpener
from services.families.readers.nested import Nested
from tests.families.call_readers import CUT, Calls, f, read
from tests.kit.every import for_rows

N = "]~["
"""The mark of nested tags; rows have NS for it."""
READER = Nested(N, next_markers=("</calls>", "<invoke name="))
OPENER = CallOpener(name="f")
READ: list[tuple[str, Calls, str]] = [
    *[
        (f"\n{text}\nNS</invoke> x", [("f", arguments)], " x")
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
    ("NS<n>1NS</n>\nNS</calls>", [f(n=1)], f"{N}</calls>"),
    ("NS<n>1NS</n>\n", [f(n=1)], ""),
    *[(text, [CUT], "") for text in ("NS<s>cut", "NS<n>1", "NS<o>NS<a>1NS</a>", "")],
    ("NS<s>xNS</s>NS<n", [CUT], f"{N}<n"),
]


@for_rows(READ)
def test_calls_are_read(text: str, calls: Calls, rest: str) -> None:
    assert read(READER, OPENER, text.replace("NS", N)) == (calls, rest, None)


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
    assert read(READER, swallowed, text.replace("NS", N)) == ([("f", arguments)], "", None)


def test_cut_call_never_completes() -> None:
    assert read(READER, OPENER, f"{N}<n>1{N}</n>\n", FinishReason.LENGTH)[0] == [CUT]
