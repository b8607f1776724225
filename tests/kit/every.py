"""One test for many cases: all of them run, and each that fails is reported with its name.

`for_each` and `for_rows` make a test of a check. Inside a test, `with cases.case(name): …` (a
fixture) does the same. All failures of a test are one report; pytest's own `subtests` make a report
of each case.
"""

import functools
import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
Check = Callable[..., None]
MOST_SHOWN = 5
"""Of this many failures the tracebacks are shown; of all others only the names."""
MOST_NAMED = 80
"""The characters of a name."""


def name_of(case: object) -> str:
    """A case's name, or its text."""
    return str(getattr(case, "name", case))[:MOST_NAMED]


def for_each(
    cases: Iterable[T], *, parts: int = 1, name: Callable[[T], str] = name_of
) -> Callable[[Check], Check]:
    """Decorates a check of one case, which is its first parameter, and makes a test of all cases.

    The other parameters are fixtures, which are made once for all cases. A check that takes longer
    than two seconds has `parts`: each is a test of its own.
    """
    return _for_all([(name(case), (case,)) for case in cases], parts, 1)


def for_rows(rows: Sequence[tuple[Any, ...]]) -> Callable[[Check], Check]:
    """Decorates a check of one row of a table, with the row's columns as its first parameters."""
    return _for_all([(name_of(row), row) for row in rows], 1, len(next(iter(rows), ())))


def _for_all(
    cases: list[tuple[str, tuple[Any, ...]]], parts: int, columns: int
) -> Callable[[Check], Check]:
    def decorate(check: Check) -> Check:
        @functools.wraps(check, updated=())
        def test(part: int = 0, **fixtures: Any) -> None:
            _run(check, cases[part::parts], fixtures)

        others = [*inspect.signature(check).parameters.values()][columns:]
        test.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
        test.pytestmark = [*getattr(check, "pytestmark", ())]  # type: ignore[attr-defined]
        if parts == 1:
            return test
        part = inspect.Parameter("part", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([part, *others])  # type: ignore[attr-defined]
        split: Check = pytest.mark.parametrize("part", range(parts))(test)
        return split

    return decorate


def _run(
    check: Check, named: Sequence[tuple[str, tuple[Any, ...]]], fixtures: dict[str, Any]
) -> None:
    cases = Cases()
    for name, case in named:
        with cases.case(name):
            check(*case, **fixtures)
    cases.judge()


class Cases:
    """The cases of one test. One that fails does not keep the others from running."""

    def __init__(self) -> None:
        self._number = 0
        self._failed: list[str] = []
        self._errors: list[BaseException] = []

    @contextmanager
    def case(self, *words: object, **values: object) -> Iterator[None]:
        """One case, named by words and values."""
        self._number += 1
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            named = [f"{key}={value}" for key, value in values.items()]
            name = ", ".join([*map(str, words), *named])
            error.add_note(f"in the case {name!r}")
            self._failed.append(name)
            self._errors.append(error)

    def judge(self) -> None:
        """Raises the failures of all cases."""
        assert self._number, "a test without cases asserts nothing"
        if self._failed:
            text = f"{len(self._failed)} of {self._number} cases fail: {', '.join(self._failed)}"
            raise BaseExceptionGroup(text, self._errors[:MOST_SHOWN])


@pytest.fixture
def cases() -> Cases:
    """Judged when the test's function has returned."""
    return Cases()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    result = yield
    cases = pyfuncitem.funcargs.get("cases")
    if isinstance(cases, Cases):
        cases.judge()
    return result
