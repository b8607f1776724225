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


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (subjects.turn("acme/m 1", "p-1"), "tw.v2.turn.acme=2Fm=201.p-1"),
        (subjects.generate("m", "w.1"), "tw.v2.gen.m.w=2E1"),
        (subjects.heartbeat("worker", "w*"), "tw.v2.beat.worker.w=2A"),
        (subjects.own_heartbeats(), "tw.v2.beat.*.*"),
        (subjects.heartbeats(), "tw.*.beat.*.*"),
        (subjects.stored_messages("s"), "$JS.API.DIRECT.GET.s"),
    ],
)
def test_subjects_have_their_form(subject: str, expected: str) -> None:
    assert subject == expected


STORED = {name for name in vars(subjects) if name.startswith(("bucket_", "stream_", "stored_"))}
NAMES = {"escape", "unescape", "heartbeats", "heartbeat_sender", "is_own"}
"""Functions that do not build the subject of a message between processes."""


def test_every_subject_has_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = {name: one for name, one in vars(subjects).items() if inspect.isfunction(one)}
    names = [name for name in functions if name not in STORED | NAMES and name[0] != "_"]
    assert len(names) > 13
    for name in names:
        monkeypatch.setattr(subjects, "PREFIX", "tw.v7")
        parameters = inspect.signature(functions[name]).parameters
        subject = functions[name](*["a.* é"] * len(parameters))
        assert subjects.is_own(subject)
        monkeypatch.setattr(subjects, "PREFIX", "tw.v71")
        assert not subjects.is_own(subject)


@given(
    number=st.integers(0, 99), stage=st.sampled_from(["worker", "parser"]), name=st.text(max_size=9)
)
def test_sender_of_a_heartbeat_is_in_its_subject(number: int, stage: str, name: str) -> None:
    try:
        subject = subjects.heartbeat(stage, name).replace(subjects.PREFIX, f"tw.v{number}", 1)
    except UnicodeEncodeError:
        return
    assert subjects.heartbeat_sender(subject) == (f"tw.v{number}", stage, subjects.escape(name))
