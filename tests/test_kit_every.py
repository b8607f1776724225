"""One test of many cases."""

import pytest

from tests.kit.every import Cases, for_each, for_rows


def test_every_case_runs_and_those_that_fail_are_named() -> None:
    cases = Cases()
    ran: list[int] = []
    for number in range(4):
        with cases.case("number", value=number):
            ran.append(number)
            assert number % 2 == 0
    assert ran == [0, 1, 2, 3]
    with pytest.raises(BaseExceptionGroup, match="2 of 4 cases fail: number, value=1, number, v"):
        cases.judge()


def test_a_test_without_cases_fails() -> None:
    with pytest.raises(AssertionError, match="asserts nothing"):
        Cases().judge()


@for_each([1, 2, 3])
def test_a_check_is_called_with_each_case(case: int) -> None:
    assert case in {1, 2, 3}


@for_rows([("a", 1), ("bc", 2)])
def test_a_check_is_called_with_each_row(text: str, length: int) -> None:
    assert len(text) == length


def test_the_fixture_fails_the_test(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["tests.kit.every"]')
    pytester.makepyfile(
        """
        def test_it(cases):
            for number in range(3):
                with cases.case(number=number):
                    assert number != 1

        async def test_later(cases):
            with cases.case("one"):
                assert False
        """
    )
    result = pytester.runpytest_inprocess(
        "-p",
        "no:cacheprovider",
        "-o",
        "asyncio_mode=auto",
        "-o",
        "asyncio_default_fixture_loop_scope=function",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*1 of 3 cases fail: number=1*", "*1 of 1 cases fail: one*"])
