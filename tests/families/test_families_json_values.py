"""Values as JSON, Python and Gemma write them become JSON, however the text is cut."""

import json
import random
from typing import Any

from services.families.grammar.scanner import Scanner
from services.families.readers.gemma import GemmaValues
from services.families.readers.json_values import JSON
from services.families.readers.python_values import PYTHON, literal
from tests.kit.every import for_rows
from tests.kit.examples import chances
from tests.kit.parser_cases import drive, grouped

T = '<|"|>'
VALUE_READERS = {"json": JSON, "python": PYTHON, "gemma": GemmaValues(T, "<tool_call|>")}


def copied(reader: str, text: str, size: int | None = None) -> tuple[str, bool, str]:
    """What was said, whether the value ended, and what is left; the same however the text is
    cut."""
    results = []
    for pieces in [size] if size else [1, 3, 1000]:
        said: list[str] = []
        scanner = Scanner()
        reading = VALUE_READERS[reader].copy(scanner, said.append)
        ended = drive(reading, scanner, grouped(list(text), pieces))
        results.append(("".join(said), ended, scanner.rest()))
    assert results == results[:1] * len(results)
    return results[0]


@for_rows(
    [
        ("json", r'{"a": "\d+\s"}', {"a": r"\d+\s"}, ""),
        ("json", r'{"a": "C:\users"}', {"a": r"C:\users"}, ""),
        ("json", "[True, False, None]", [True, False, None], ""),
        ("json", "[007, +3, .5, 1., 1e3]", [7, 3, 0.5, 1.0, 1000.0], ""),
        ("json", '"\\ud83d\\ude00"', "😀", ""),
        ("python", "'it's here')", "it's here", ")"),
        ("python", "'a\\x41\\n\\'\\\\n\\q')", "aA\n'\\n\\q", ")"),
        ("python", "'\\U0001F600 \\u200d')", "😀 \u200d", ")"),
        ("python", "{'a': (1,), 'b': {}})", {"a": [1], "b": {}}, ")"),
        (
            "gemma",
            f"{{a:{T}x{T},n:-1.5e-3,b:false,z:null,l:[1,{T}y{T}]}}",
            {"a": "x", "n": -0.0015, "b": False, "z": None, "l": [1, "y"]},
            "",
        ),
        ("gemma", f"{{a:{T}say {T}hi{T} now{T},n:1}}", {"a": 'say "hi" now', "n": 1}, ""),
        ("gemma", '{l:["a","b, c"],s:"x"}', {"l": ["a", "b, c"], "s": "x"}, ""),
        ("gemma", f"{{account:harbour-7{T},page:2}}", {"account": "harbour-7", "page": 2}, ""),
        ("gemma", f"{{cmd:echo a, b{T},n:1}}", {"cmd": "echo a, b", "n": 1}, ""),
        (
            "gemma",
            f"{{o:{{x y :1,Content type={T}a{T}}}}}",
            {"o": {"x y": 1, "Content type": "a"}},
            "",
        ),
        ("gemma", "{cmd:a, b c: d,n:1}", {"cmd": "a, b c: d", "n": 1}, ""),
    ]
)
def test_values_are_read(reader: str, text: str, value: object, rest: str) -> None:
    said, ended, left = copied(reader, text)
    assert (ended, left) == (True, rest)
    assert json.loads(said) == value
    assert str(json.loads(said)) == str(value), "numbers keep their kind"


@for_rows(
    [
        ("nope", "nope"),
        ('{"a" 1}', "1}"),
        ('{"a": 1 "b": 2}', '"b": 2}'),
        ('{"a": NaN}', "NaN}"),
        ('{"a": [1}', "}"),
        ("[1.2.3]", "1.2.3]"),
        ("{,}", ",}"),
    ]
)
def test_reading_ends_at_malformed_json(text: str, left: str) -> None:
    assert copied("json", text)[1:] == (False, left)


@for_rows(
    [
        *[("json", text) for text in ('{"a": "b', '{"a": ', '{"a', "[1, ", "", "[", '"\\', "[tru")],
        ("json", '"\\u12'),
        *[("gemma", text) for text in ("{a:x<tool_call|>", "{a:}", "{:1}", "{a:b", "{a")],
        ("gemma", f"{{a:{T}x,b:2}}<tool_call|>"),
        ("gemma", f"{{a:{T}x"),
    ]
)
def test_value_that_is_cut_or_ambiguous_does_not_end(reader: str, text: str) -> None:
    assert not copied(reader, text)[1]


def test_nesting_is_limited() -> None:
    assert copied("json", "[" * 256 + "]" * 256)[1]
    assert not copied("json", "[" * 257 + "]" * 257)[1]


@for_rows(
    [
        ("{'a': True}", '{"a": true}'),
        (r"""['\xa0', 'it\'s', "it's"]""", '["\xa0", "it\'s", "it\'s"]'),
        (r'["[\x00-\x7f]"]', r'["[\\x00-\\x7f]"]'),
        ("[1", None),
        ("x", None),
    ]
)
def test_literal_reads_the_whole_text_or_nothing(text: str, expected: str | None) -> None:
    assert literal(text) == expected


# -- what is written is read back

LETTERS = [*"ab\"'\\/{}[],:<>|~]=\n\t\x00\x7f é", "🚢", "\u2028", "\\u", "true", "null"]
NUMBERS = [0, -1, 7, 2**53 + 1, -(2**63), 0.5, -2.75, 1e16, 1e-7, 1.5e300, 5e-324]


def any_text(chance: random.Random) -> str:
    return "".join(chance.choices(LETTERS, k=chance.randint(0, 8)))


def any_value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.choice(("text", "number", "constant", "list", "object")[: 5 if depth < 3 else 3])
    if kind == "text":
        return any_text(chance)
    if kind == "number":
        return chance.choice(NUMBERS)
    if kind == "constant":
        return chance.choice((None, True, False))
    size = range(chance.randint(0, 3))
    if kind == "list":
        return [any_value(chance, depth + 1) for _ in size]
    return {any_text(chance): any_value(chance, depth + 1) for _ in size}


def test_json_is_copied_as_it_was_written_also_if_it_is_cut() -> None:
    for chance in chances("json", 150):
        value, size = any_value(chance), chance.choice((1, 3, 1000))
        ascii_only, indent = chance.random() < 0.5, chance.choice((None, 1))
        text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
        assert copied("json", text + "\n", size) == (text, True, "\n")
        compact = json.dumps(value)
        assert compact.startswith(copied("json", compact[: chance.randint(0, len(compact))])[0])


def test_python_literals_become_json() -> None:
    for chance in chances("python", 150):
        value = any_value(chance)
        said, ended, rest = copied("python", repr(value) + ")", chance.choice((1, 3, 1000)))
        assert (ended, rest) == (True, ")")
        assert json.loads(said) == value
