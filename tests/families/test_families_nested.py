from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from services.families.grammar.turn import CallOpener
from services.families.readers.nested import Nested, NestedStyle
from tests.kit.examples import examples
from tests.kit.parser_cases import read_body

N = "]~["
GRAMMAR = Nested(N, next_markers=("</calls>", "<invoke name="))
SCHEMA = {
    "$defs": {
        "Point": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "label": {"type": "string"}},
        }
    },
    "properties": {
        "s": {"type": "string"},
        "n": {"type": "integer"},
        "maybe": {"type": ["string", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "nums": {"type": "array", "items": {"type": "number"}},
        "point": {"$ref": "#/$defs/Point"},
        "points": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
        "free": {"type": "object"},
    },
}
TOOLS = [ToolSpec("f", schema=SCHEMA)]


def read(text: str, reason: FinishReason = FinishReason.STOP, opener: str = "") -> tuple[Any, str]:
    """The arguments (None if never complete) and the text left; the same however the text is
    cut."""
    text = text.replace("NS", N)
    results = [
        read_body(GRAMMAR, text, TOOLS, CallOpener(opener, "", "f"), size, reason)
        for size in (1, 3, 1000)
    ]
    assert results[0] == results[1] == results[2]
    ((block,), rest, _) = results[0]
    return block.get("input"), rest


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NS<s>12NS</s>NS<n>12NS</n>NS<other>3NS</other>", {"s": "12", "n": 12, "other": "3"}),
        (
            "NS<s>  <item>1</item></invoke> a]<b NS<x>\nNS</s>",
            {"s": f"  <item>1</item></invoke> a]<b {N}<x>\n"},
        ),
        ("NS<maybe>nullNS</maybe>", {"maybe": None}),
        ("NS<tags>NS<item>1NS</item>NS<item>bNS</item>NS</tags>", {"tags": ["1", "b"]}),
        ("NS<tags>NS</tags>NS<free>NS</free>NS<s>NS</s>", {"tags": [], "free": {}, "s": ""}),
        ("NS<tags>oneNS</tags>", {"tags": ["one"]}),
        ('NS<tags>["a", "b"]NS</tags>', {"tags": ["a", "b"]}),
        ("NS<nums>NS<item>-3NS</item>NS<item>2.50NS</item>NS</nums>", {"nums": [-3, 2.5]}),
        ("NS<point>NS<x>1NS</x>NS<label>2NS</label>NS</point>", {"point": {"x": 1, "label": "2"}}),
        (
            "NS<points>NS<item>NS<x>1NS</x>NS</item>NS<item>NS<x>2NS</x>NS</item>NS</points>",
            {"points": [{"x": 1}, {"x": 2}]},
        ),
        (
            "NS<free>NS<a>1NS</a>NS<b>NS<c>trueNS</c>NS<d>007NS</d>NS</b>NS</free>",
            {"free": {"a": 1, "b": {"c": True, "d": "007"}}},
        ),
        ("NS<free>NS<l>NS<item>1NS</item>NS</l>NS</free>", {"free": {"l": [1]}}),
        ("NS<free>NS<a>1NS</a>NS<a>2NS</a>NS</free>", {"free": {"a": [1, 2]}}),
        ("NS<free>so NS<a>1NS</a>NS</free>", {"free": {"$text": "so ", "a": 1}}),
        ("NS<n>1NS</n>NS<s>xNS</s>NS<n>2NS</n>", None),
        ("NS<s>aNS</s>NS<s>bNS</s>", None),
        ("", {}),
    ],
)
def test_forms(text: str, value: Any) -> None:
    assert read(f"\n{text}\nNS</invoke> x") == (value, " x")


def test_the_first_opener_may_be_swallowed() -> None:
    assert read("lsNS</s>NS</invoke>", opener='NS<invoke name="f">s>') == ({"s": "ls"}, "")
    assert read("4NS</n>NS</invoke>", opener='NS<invoke name="f">\nn>') == ({"n": 4}, "")


def test_marker_after_the_call_ends_it_and_is_not_consumed() -> None:
    assert read("NS<n>1NS</n>\nNS</calls>") == ({"n": 1}, f"{N}</calls>")


@pytest.mark.parametrize(
    "text", ["NS<s>cut", "NS<n>1", "NS<free>NS<a>1NS</a>", "NS<s>xNS</s>NS<n", ""]
)
def test_cut_off_call_never_completes(text: str) -> None:
    assert read(text)[0] is None


def test_a_call_without_closer_is_whole_only_if_the_model_stopped() -> None:
    assert read("NS<n>1NS</n>\n")[0] == {"n": 1}
    assert read("NS<n>1NS</n>\n", FinishReason.LENGTH)[0] is None


def test_deep_nesting_is_read() -> None:
    depth = 200
    value, _ = read("NS<free>" + "NS<a>" * depth + "NS</a>" * depth + "NS</free>NS</invoke>")
    assert value is not None


PLAIN = st.text(alphabet='ab <>/]~\n"é', max_size=8).filter(lambda t: N not in t + N[:2])


@settings(max_examples=examples(100))
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "s": PLAIN,
            "n": st.integers(),
            "tags": st.lists(PLAIN, min_size=1, max_size=3),
            "points": st.lists(
                st.fixed_dictionaries({"x": st.integers(), "label": PLAIN}), max_size=3
            ),
        },
    )
)
def test_written_calls_are_read_back(value: dict[str, Any]) -> None:
    assert read(NestedStyle("NS")(value) + "NS</invoke>")[0] == value
