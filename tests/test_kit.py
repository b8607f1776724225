"""The kit: tests of many cases, and the settings of all property tests."""

import importlib
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.every import Cases, for_each, for_rows
from tests.kit.examples import PROFILE


@for_each([1, 2, 3])
def test_a_check_is_called_with_each_case(case: int) -> None:
    assert case in {1, 2, 3}


@for_rows([("a", 1), ("bc", 2)])
def test_a_check_is_called_with_each_row(text: str, length: int) -> None:
    assert len(text) == length


def test_every_case_runs_and_those_that_fail_are_named(pytester: pytest.Pytester) -> None:
    with pytest.raises(AssertionError, match="asserts nothing"):
        Cases().judge()
    pytester.makeconftest('pytest_plugins = ["tests.kit.every"]')
    pytester.makepyfile(
        """
        def test_it(cases):
            for number in range(4):
                with cases.case("number", value=number):
                    assert number % 2 == 0

        async def test_later(cases):
            with cases.case("one"):
                assert False
        """
    )
    options = ("asyncio_mode=auto", "asyncio_default_fixture_loop_scope=function")
    arguments = [word for option in options for word in ("-o", option)]
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)
    result.assert_outcomes(failed=2)
    named = "*2 of 4 cases fail: number, value=1, number, value=3*"
    result.stdout.fnmatch_lines([named, "*1 of 1 cases fail: one*"])


def examples() -> list[tuple[int, str, bytes, str]]:
    """The examples of a property, which are the same in each run."""
    met = []

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
