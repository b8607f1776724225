"""Model names become one subject token, and come back."""

import inspect
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
        (subjects.own_heartbeats(), "tw.v2.beat.*.*"),
        (subjects.heartbeats(), "tw.*.beat.*.*"),
    ],
)
def test_subjects_have_their_form(subject: str, expected: str) -> None:
    assert subject == expected


STORED = {name for name in vars(subjects) if name.startswith(("bucket_", "stream_", "stored_"))}
NAMES = {"escape", "unescape", "heartbeats", "heartbeat_sender", "is_own"}
"""Functions that do not build the subject of a message between processes."""


@given(number=st.integers(0, 10**6), other=st.integers(0, 10**6), name=st.text("a.* é", max_size=4))
def test_every_subject_has_the_protocol(number: int, other: int, name: str) -> None:
    builders = {
        n: f
        for n, f in vars(subjects).items()
        if inspect.isfunction(f) and n not in STORED | NAMES and n[0] != "_"
    }
    assert len(builders) > 13
    before = subjects.PREFIX
    try:
        for builder in builders.values():
            subjects.PREFIX = f"tw.v{number}"
            subject = builder(*[name] * len(inspect.signature(builder).parameters))
            assert subjects.is_own(subject)
            subjects.PREFIX = f"tw.v{other}"
            assert subjects.is_own(subject) == (number == other)
    finally:
        subjects.PREFIX = before


@given(
    number=st.integers(0, 99), stage=st.sampled_from(["worker", "parser"]), name=st.text(max_size=9)
)
def test_sender_of_a_heartbeat_is_in_its_subject(number: int, stage: str, name: str) -> None:
    try:
        subject = subjects.heartbeat(stage, name).replace(subjects.PREFIX, f"tw.v{number}", 1)
    except UnicodeEncodeError:
        return
    assert subjects.heartbeat_sender(subject) == (f"tw.v{number}", stage, subjects.escape(name))
