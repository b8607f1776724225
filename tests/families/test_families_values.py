import json
from ast import literal_eval

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.families.grammar.scanner import Scanner
from services.families.readers.values import JSON, PYTHON, Values, literal
from tests.kit.examples import examples
from tests.kit.parser_cases import drive

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)


def copied(reader: Values, text: str, size: int = 1) -> tuple[str, bool, str]:
    """What was said, whether the value ended, and what is left."""
    said: list[str] = []
    scanner = Scanner()
    ended = drive(
        reader.copy(scanner, said.append),
        scanner,
        [text[i : i + size] for i in range(0, len(text), size)],
    )
    return "".join(said), ended, scanner.rest()


@settings(max_examples=examples(150))
@given(VALUES, st.booleans(), st.sampled_from([None, 1]), st.sampled_from([1, 3, 1000]))
def test_json_is_copied_as_it_was_written(
    value: object, ascii_only: bool, indent: int | None, size: int
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert copied(JSON, text + "\n", size) == (text, True, "\n")


@settings(max_examples=examples(150))
@given(VALUES, st.sampled_from([1, 3, 1000]))
def test_python_literals_become_json(value: object, size: int) -> None:
    said, ended, rest = copied(PYTHON, repr(value) + ")", size)
    assert (ended, rest) == (True, ")")
    assert json.loads(said) == literal_eval(repr(value))


def test_cut_number_is_not_completed() -> None:
    assert copied(JSON, "[1.")[0] == "["
    assert copied(JSON, "[1.,")[0] == "[1.0,"


@given(VALUES, st.data())
def test_copy_of_a_cut_value_is_a_prefix(value: object, data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = data.draw(st.integers(0, len(text)))
    assert text.startswith(copied(JSON, text[:cut])[0])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1,],}', {"a": [1]}),
        ('{"a": "x\ny\t"}', {"a": "x\ny\t"}),
        (r'{"a": "\d+\s"}', {"a": r"\d+\s"}),
        (r'{"a": "it\'s"}', {"a": "it's"}),
        (r'{"a": "C:\users"}', {"a": r"C:\users"}),
        ("{'a': 'say \"hi\"'}", {"a": 'say "hi"'}),
        ("[True, False, None]", [True, False, None]),
        ("[007, +3, .5, 1., 1e3]", [7, 3, 0.5, 1.0, 1000.0]),
        ("[9007199254740993]", [9007199254740993]),
        ('"\\ud83d\\ude00"', "😀"),
        ('"\u2028é"', "\u2028é"),
    ],
)
def test_unambiguous_errors_are_repaired(text: str, value: object) -> None:
    for size in (1, 100):
        said, ended, rest = copied(JSON, text, size)
        assert (ended, rest) == (True, "")
        assert json.loads(said) == value
        assert str(json.loads(said)) == str(value)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("nope", "nope"),
        ('{"a" 1}', "1}"),
        ('{"a": 1 "b": 2}', '"b": 2}'),
        ('{"a": NaN}', "NaN}"),
        ("{a: 1}", "a: 1}"),
        ("[1}", "}"),
        ('{"a": [1}', "}"),
        ("[1.2.3]", "1.2.3]"),
        ("{,}", ",}"),
    ],
)
def test_reading_ends_at_malformed_json(text: str, left: str) -> None:
    for size in (1, 100):
        assert copied(JSON, text, size)[1:] == (False, left)


@pytest.mark.parametrize(
    "text", ['{"a": "b', '{"a": ', '{"a', "[1, ", "", "[", '"\\', '"\\u12', "[tru"]
)
def test_cut_off_value_has_not_ended(text: str) -> None:
    for size in (1, 100):
        assert not copied(JSON, text, size)[1]


def test_nesting_is_limited() -> None:
    assert copied(JSON, "[" * 256 + "]" * 256)[1]
    assert not copied(JSON, "[" * 257 + "]" * 257)[1]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'it's here'", "it's here"),
        ("'a\\x41\\n\\'\\\\n\\q'", "aA\n'\\n\\q"),
        ("'\\U0001F600 \\u200d'", "😀 \u200d"),
        ('"Io\'s"', "Io's"),
        ("('a', 1)", ["a", 1]),
        ("{'a': (1,), 'b': {}}", {"a": [1], "b": {}}),
        ("'a', b'", "a"),
    ],
)
def test_python_quotes_and_escapes_are_read(text: str, value: object) -> None:
    for size in (1, 100):
        said, ended, _ = copied(PYTHON, text + ")", size)
        assert ended
        assert json.loads(said) == value


def test_plain_text_of_a_live_string_need_not_pass() -> None:
    scanner = Scanner('["ab')
    reading = JSON.copy(scanner, list[str]().append, live=True)
    next(reading)
    assert scanner.trigger is not None
    assert scanner.trigger("plain text, é <b> 'x'") is None
    assert all(scanner.trigger(text) for text in ('"', "a\\", "a\n"))
    scanner.extend('c"')
    next(reading)
    assert scanner.trigger is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (' {"a": 1} ', '{"a": 1}'),
        ("{'a': True}", '{"a": true}'),
        (r"""['\xa0', 'it\'s', "it's"]""", '["\xa0", "it\'s", "it\'s"]'),
        (r'["[\x00-\x7f]"]', r'["[\\x00-\\x7f]"]'),
        ("[1] x", None),
        ("[1", None),
        ("x", None),
        ("", None),
    ],
)
def test_literal_reads_the_whole_text_or_nothing(text: str, expected: str | None) -> None:
    assert literal(text) == expected
