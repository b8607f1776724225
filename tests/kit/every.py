"""One test for many cases: all of them run, and each that fails is reported with its name."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
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

    The other parameters are fixtures, as usual. A check that takes longer than two seconds has
    `parts`: each is a test of its own.
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
    check: Check, cases: Sequence[tuple[str, tuple[Any, ...]]], fixtures: dict[str, Any]
) -> None:
    assert cases, "a test without cases asserts nothing"
    failed: list[str] = []
    errors: list[Exception] = []
    for name, case in cases:
        try:
            check(*case, **fixtures)
        except Exception as error:
            error.add_note(f"in the case {name!r}")
            failed.append(name)
            errors.append(error)
    if failed:
        text = f"{len(failed)} of {len(cases)} cases fail: {', '.join(failed)}"
        raise ExceptionGroup(text, errors[:MOST_SHOWN])
