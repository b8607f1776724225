"""JSON values are copied, however the text is cut."""

import json

from services.families.readers.json_values import JSON
from tests.families.random_values import any_value
from tests.kit.every import for_each, for_rows
from tests.kit.examples import chances
from tests.kit.parser_cases import copy_value


@for_rows(
    [
        (r'{"a": "\d+\s"}', {"a": r"\d+\s"}),
        (r'{"a": "C:\users"}', {"a": r"C:\users"}),
        ("[True, False, None]", [True, False, None]),
        ("[007, +3, .5, 1., 1e3]", [7, 3, 0.5, 1.0, 1000.0]),
        ('"\\ud83d\\ude00"', "😀"),
    ]
)
def test_values_are_read(text: str, value: object) -> None:
    said, ended, left = copy_value(JSON, text)
    assert (ended, left) == (True, "")
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
    assert copy_value(JSON, text)[1:] == (False, left)


@for_each(['{"a": "b', '{"a": ', '{"a', "[1, ", "", "[", '"\\', "[tru", '"\\u12'])
def test_value_that_is_cut_does_not_end(text: str) -> None:
    assert not copy_value(JSON, text)[1]


def test_nesting_is_limited() -> None:
    assert copy_value(JSON, "[" * 256 + "]" * 256)[1]
    assert not copy_value(JSON, "[" * 257 + "]" * 257)[1]


def test_json_is_copied_as_it_was_written_also_if_it_is_cut() -> None:
    for chance in chances("json", 150):
        value, size = any_value(chance), chance.choice((1, 3, 1000))
        ascii_only, indent = chance.random() < 0.5, chance.choice((None, 1))
        text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
        assert copy_value(JSON, text + "\n", size) == (text, True, "\n")
        compact = json.dumps(value)
        assert compact.startswith(copy_value(JSON, compact[: chance.randint(0, len(compact))])[0])
