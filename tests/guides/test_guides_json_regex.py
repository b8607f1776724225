"""Regular expressions inside JSON strings."""

import pytest

from schemas.conversation import Grammar
from services.guides.json_regex import JsonExpression, NotEmbeddable, Terminals
from tests.guides.random_model import ByteTokenizer, in_json, whole
from tests.kit.every import for_each, for_rows

TOKENIZER = ByteTokenizer(())


@for_rows(
    [
        (r'say "(\w|\n)+"', ['say "a\nb"'], ["say a", 'say "a b"']),
        (r"[^a-c]+", ['x\n\t"\\', "ß🦊"], ["xa"]),
        (r"(?s:.+)\.", ["a\nb."], ["a\nb"]),
        (r"\x22\u005c[\x00-\x7f]\d{2,3}", ['"\\x12', '"\\\n345'], ["x12"]),
        (r"(?i:ab)\s?(?:c|(?P<d>d))$", ["AB c", "ab\td"], ["AB C"]),
    ]
)
def test_expressions_match_inside_json_strings(
    pattern: str, fits: list[str], others: list[str]
) -> None:
    lark = whole(Grammar("regex", pattern), in_json=True)
    assert [text for text in (*fits, *others) if TOKENIZER.accepts(lark, in_json(text))] == fits


@for_each([r"\p{L}", r"(?=a)", r"a\b", "a^b", "(?x: a)", "[a", r"(?<!a)b", "a\\"])
def test_unsupported_expressions_are_refused(pattern: str) -> None:
    with pytest.raises(NotEmbeddable):
        JsonExpression(Terminals("")).rewrite(pattern)
    with pytest.raises(NotEmbeddable):
        JsonExpression(Terminals("")).rewrite("a", "x")
