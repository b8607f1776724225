"""Model names become one subject token, and come back."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import subjects


@given(st.text())
def test_any_name_is_one_safe_token(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    token = subjects.escape(name)
    assert re.fullmatch(r"[A-Za-z0-9_=-]+", token)
    assert subjects.unescape(token) == name


@given(st.text(alphabet="ab/.=% é", max_size=6), st.text(alphabet="ab/.=% é", max_size=6))
def test_different_names_have_different_tokens(a: str, b: str) -> None:
    assert (subjects.escape(a) == subjects.escape(b)) == (a == b)


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (subjects.turn("acme/m 1", "p-1"), "tw.v2.turn.acme=2Fm=201.p-1"),
        (subjects.generate("m", "w.1"), "tw.v2.gen.m.w=2E1"),
        (subjects.heartbeat("worker", "w*"), "tw.v2.beat.worker.w=2A"),
        (subjects.heartbeats(), "tw.v2.beat.*.*"),
    ],
)
def test_subjects_have_their_form(subject: str, expected: str) -> None:
    assert subject == expected
