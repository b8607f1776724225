"""Texts of tokens in a plain stretch, alone and in a run."""

import re

from services.families.grammar.scanner import PlainStretch
from services.tokenization.plain_tokens import PlainStretches

TEXTS = ["", "a", "<", "b\n", '"', None, "é"]
JSON = PlainStretch(re.compile(r"[<]|\n\Z").search, escape=True)


def test_text_for_json_is_escaped() -> None:
    plain = PlainStretches(TEXTS)[JSON]
    assert plain[4] == '\\"'
    assert plain.run([3, 4, 1]) == 'b\\n\\"a'
    assert (plain[2], plain[5], plain.run([1, 2]), plain.run([1, 3])) == (None, None, None, None)
