"""Texts of tokens in a plain stretch, alone and in a run."""

import re

from services.families.grammar.scanner import Trigger
from services.tokenization.plain_tokens import PlainStretches

TEXTS = ["", "a", "<", "b\n", '"', None, "é"]
ENDS: Trigger = re.compile(r"[<]|\n\Z").search


def test_token_has_its_text_or_must_be_fed() -> None:
    plain = PlainStretches(TEXTS).of(ENDS, False)
    for _ in range(2):  # computed, then cached
        found = [plain[token] for token in range(len(TEXTS))]
        assert found == ["", "a", None, None, '"', None, "é"]
        assert plain[len(TEXTS)] is None
        assert plain[-1] is None
    assert set(plain) == set(range(len(TEXTS)))


def test_run_is_checked_as_a_whole() -> None:
    plain = PlainStretches(TEXTS).of(ENDS, False)
    assert plain.run([1, 3, 1, 0, 6]) == "ab\naé"
    assert plain.run([1, 3]) is None
    assert plain.run([1, 2, 1]) is None
    assert plain.run([1, 5, 1]) is None
    assert plain.run([1, len(TEXTS)]) is None
    assert plain.run([]) == ""


def test_text_for_json_is_escaped() -> None:
    plain = PlainStretches(TEXTS).of(ENDS, True)
    assert plain[4] == '\\"'
    assert plain.run([3, 4, 1]) == 'b\\n\\"a'
