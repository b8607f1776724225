"""The settings of all property tests."""

import importlib
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.examples import PROFILE

Examples = list[tuple[int, str, bytes, str]]


def examples() -> Examples:
    """The examples of a property, which are the same in each run."""
    met: Examples = []

    @settings(derandomize=True, max_examples=200)
    @given(st.integers(), st.text(), st.binary(), st.floats())
    def run(number: int, text: str, data: bytes, ratio: float) -> None:
        met.append((number, text, data, repr(ratio)))

    run()
    return met


@pytest.mark.skipif(PROFILE == "explore", reason="this profile meets other examples in each run")
def test_examples_are_the_same_whatever_modules_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module may be imported by the tests that ran before in the same process."""
    before = examples()
    (tmp_path / "imported_later.py").write_text("A, B, C, D = 123_456, 'zebra', b'stripes', 3.25\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("imported_later")
    try:
        assert examples() == before
    finally:
        del sys.modules["imported_later"]
