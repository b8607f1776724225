"""Values as Python writes them become JSON, however the text is cut."""

import json

from services.families.readers.python_values import PYTHON, literal
from tests.families.random_values import any_value
from tests.kit.every import for_rows
from tests.kit.examples import chances
from tests.kit.parser_cases import copy_value


@for_rows(
    [
        ("'it's here'", "it's here"),
        ("'a\\x41\\n\\'\\\\n\\q'", "aA\n'\\n\\q"),
        ("'\\U0001F600 \\u200d'", "😀 \u200d"),
        ("{'a': (1,), 'b': {}}", {"a": [1], "b": {}}),
    ]
)
def test_values_are_read(text: str, value: object) -> None:
    said, ended, left = copy_value(PYTHON, text + ")")
    assert (ended, left) == (True, ")")
    assert json.loads(said) == value
    assert str(json.loads(said)) == str(value), "numbers keep their kind"


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


def test_python_literals_become_json() -> None:
    for chance in chances("python", 150):
        value = any_value(chance)
        said, ended, rest = copy_value(PYTHON, repr(value) + ")", chance.choice((1, 3, 1000)))
        assert (ended, rest) == (True, ")")
        assert json.loads(said) == value
