"""Values as Gemma writes them become JSON, however the text is cut."""

import json

from services.families.readers.gemma import GemmaValues
from tests.kit.every import for_each, for_rows
from tests.kit.parser_cases import copy_value

T = '<|"|>'
GEMMA = GemmaValues(T, "<tool_call|>")


@for_rows(
    [
        (
            f"{{a:{T}x{T},n:-1.5e-3,b:false,z:null,l:[1,{T}y{T}]}}",
            {"a": "x", "n": -0.0015, "b": False, "z": None, "l": [1, "y"]},
        ),
        (f"{{a:{T}say {T}hi{T} now{T},n:1}}", {"a": 'say "hi" now', "n": 1}),
        ('{l:["a","b, c"],s:"x"}', {"l": ["a", "b, c"], "s": "x"}),
        (f"{{account:harbour-7{T},page:2}}", {"account": "harbour-7", "page": 2}),
        (f"{{cmd:echo a, b{T},n:1}}", {"cmd": "echo a, b", "n": 1}),
        (f"{{o:{{x y :1,Content type={T}a{T}}}}}", {"o": {"x y": 1, "Content type": "a"}}),
        ("{cmd:a, b c: d,n:1}", {"cmd": "a, b c: d", "n": 1}),
    ]
)
def test_values_are_read(text: str, value: object) -> None:
    said, ended, left = copy_value(GEMMA, text)
    assert (ended, left) == (True, "")
    assert json.loads(said) == value
    assert str(json.loads(said)) == str(value), "numbers keep their kind"


@for_each(
    [
        *("{a:x<tool_call|>", "{a:}", "{:1}", "{a:b", "{a"),
        *(f"{{a:{T}x,b:2}}<tool_call|>", f"{{a:{T}x"),
    ]
)
def test_value_that_is_cut_or_ambiguous_does_not_end(text: str) -> None:
    assert not copy_value(GEMMA, text)[1]
