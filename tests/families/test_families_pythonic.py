from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from services.families.grammar.turn import CallOpener
from services.families.readers.pythonic import Pythonic, python_style
from tests.kit.examples import examples
from tests.kit.parser_cases import read_body

TOOLS = [ToolSpec("f"), ToolSpec("mcp.read")]
MARKED = Pythonic("<s>", ("<e>",))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def read(
    text: str, grammar: Pythonic = MARKED, reason: FinishReason = FinishReason.STOP
) -> tuple[list[Any], str, str | None]:
    """Names with arguments (None: never complete), the text left, the text given back; however the
    text is cut."""
    opener = CallOpener(grammar.marker, grammar.marker)
    results = [read_body(grammar, text, TOOLS, opener, size, reason) for size in (1, 3, 1000)]
    assert results[0] == results[1] == results[2]
    blocks, rest, back = results[0]
    return [(block["name"], block.get("input")) for block in blocks], rest, back


@pytest.mark.parametrize(
    ("text", "calls", "rest"),
    [
        ("[f(a='x', b=1), g()]<e>", [("f", {"a": "x", "b": 1}), ("g", {})], "<e>"),
        ("f(a='x')\ng( )\n<e>", [("f", {"a": "x"}), ("g", {})], "<e>"),
        ("[ f (a = [1, (2,)], b={'k': None},) ]", [("f", {"a": [1, [2]], "b": {"k": None}})], ""),
        ("[f(a=true, b=null)]", [("f", {"a": True, "b": None})], ""),
        ("[mcp.read(q='it's')] and", [("mcp.read", {"q": "it's"})], " and"),
        ("f(a=1); f(a=2)", [("f", {"a": 1}), ("f", {"a": 2})], ""),
        ("f()\nDone.", [("f", {})], "Done."),
        (
            "[f(a='''it's\n'b'''', b=\"\"\"\\n\"\"\", c='', d=''')]",
            [("f", {"a": "it's\n'b'", "b": "\n", "c": "", "d": "'"})],
            "",
        ),
    ],
)
def test_forms(text: str, calls: list[Any], rest: str) -> None:
    assert read(text) == (calls, rest, None)


@settings(max_examples=examples(100))
@given(st.dictionaries(st.text(alphabet="abk_", min_size=1, max_size=4), VALUES, max_size=3))
def test_written_calls_are_read_back(arguments: dict[str, Any]) -> None:
    assert read(f"[f({python_style(arguments)})]")[0] == [("f", arguments)]


@pytest.mark.parametrize(
    "text", ["[f('positional')]", "see below", "[1, 2]", "[f(a b)]", "f[0](x=1)"]
)
def test_body_that_is_not_a_call_is_returned_as_text(text: str) -> None:
    calls, rest, back = read(text)
    assert calls == []
    assert back is not None
    assert back + rest == "<s>" + text


def test_a_broken_value_makes_a_call_that_never_completes() -> None:
    assert read("[f(a=oops), f(a=1)]<e>") == ([("f", None)], "<e>", None)


@pytest.mark.parametrize("text", ["[f(a='x", "[f(a=1", "[f(a="])
def test_cut_off_call_never_completes(text: str) -> None:
    assert read(text)[0] == [("f", None)] or text.endswith("=")
    assert all(arguments is None for _, arguments in read(text, reason=FinishReason.LENGTH)[0])


def test_each_call_is_complete_at_its_own_end() -> None:
    assert read("[f(a=1), f(a='x", reason=FinishReason.LENGTH)[0] == [("f", {"a": 1}), ("f", None)]


def test_cut_off_name_is_dropped() -> None:
    assert read("[read_le", reason=FinishReason.LENGTH) == ([], "", None)
