import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.families.grammar.scanner import Scanner
from services.families.readers.gemma import GemmaValues, gemma_style
from tests.kit.examples import examples
from tests.kit.parser_cases import drive

T = '<|"|>'
GEMMA = GemmaValues(T, "<tool_call|>")
KEYS = st.text(alphabet="abc_k1", min_size=1, max_size=4)
TEXTS = st.text(alphabet="ab \"'{}[],:\n\\é🚢<|", max_size=10).filter(lambda t: T not in t + T[:4])
VALUES = st.recursive(
    st.booleans() | st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def read(text: str) -> Any:
    """The value; the same however the text is cut. None if it did not end."""
    results = []
    for size in (1, 3, 1000):
        said: list[str] = []
        scanner = Scanner()
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        ended = drive(GEMMA.copy(scanner, said.append), scanner, pieces)
        results.append((ended, "".join(said), scanner.rest()))
    assert results[0] == results[1] == results[2]
    return json.loads(results[0][1]) if results[0][0] else None


@settings(max_examples=examples(150))
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_written_calls_are_read_back(value: dict[str, Any]) -> None:
    assert read(gemma_style(T)(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            f"{{a:{T}x{T},n:-1.5e-3,b:false,z:null,l:[1,{T}y{T}]}}",
            {"a": "x", "n": -0.0015, "b": False, "z": None, "l": [1, "y"]},
        ),
        (f"{{a:{T}say {T}hi{T} now{T},n:1}}", {"a": 'say "hi" now', "n": 1}),
        (f"{{a:{T}{T}}}", {"a": ""}),
        ('{l:["a","b, c"],s:"x"}', {"l": ["a", "b, c"], "s": "x"}),
        (f"{{account:harbour-7{T},page:2}}", {"account": "harbour-7", "page": 2}),
        (f"{{cmd:echo a, b{T},n:1}}", {"cmd": "echo a, b", "n": 1}),
        ("{a=1,b = 2}", {"a": 1, "b": 2}),
        (f'{{{T}k{T}:1,"j":2}}', {"k": 1, "j": 2}),
        ("{\n a: 1,\n b: word\n}", {"a": 1, "b": "word"}),
        (f"{{o:{{x y :1, Content type={T}a{T}}}}}", {"o": {"x y": 1, "Content type": "a"}}),
        ("{cmd:a, b c: d,n:1}", {"cmd": "a, b c: d", "n": 1}),
        ("{l:[red,blue]}", {"l": ["red", "blue"]}),
        (f"{{a:{T}x\n{T}}}", {"a": "x\n"}),
        ("{}", {}),
    ],
)
def test_every_form_of_a_value_is_read(text: str, value: Any) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    "text",
    [f"{{a:{T}x,b:2}}<tool_call|>", "{a:x<tool_call|>", "{a:}", "{:1}", f"{{a:{T}x", "{a:b", "{a"],
)
def test_ambiguous_text_is_not_a_value(text: str) -> None:
    assert read(text) is None
