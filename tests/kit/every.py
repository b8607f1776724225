"""One test for many cases: all of them run, and each that fails is reported with its name."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
Check = Callable[..., None]
MOST_SHOWN = 5
"""Of this many failures the tracebacks are shown; of all others only the names."""


def for_each(cases: Iterable[T] | Mapping[str, T], *, parts: int = 1) -> Callable[[Check], Check]:
    """Decorates a check of one case, which is its first parameter, and makes a test of all cases.

    The names of failures are the keys of a mapping, or the `name` or the text of a case. The other
    parameters are fixtures, as usual. A test that takes longer than two seconds has `parts`: each
    is a test of its own.
    """
    if isinstance(cases, Mapping):
        named = list(cases.items())
    else:
        named = [(str(getattr(case, "name", case)), case) for case in cases]

    def decorate(check: Check) -> Check:
        @functools.wraps(check, updated=())
        def test(part: int = 0, **fixtures: Any) -> None:
            _run(check, named[part::parts], fixtures)

        _, *others = inspect.signature(check).parameters.values()
        test.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
        test.pytestmark = [*getattr(check, "pytestmark", ())]  # type: ignore[attr-defined]
        if parts == 1:
            return test
        part = inspect.Parameter("part", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([part, *others])  # type: ignore[attr-defined]
        split: Check = pytest.mark.parametrize("part", range(parts))(test)
        return split

    return decorate


def _run(check: Check, cases: Sequence[tuple[str, T]], fixtures: dict[str, Any]) -> None:
    assert cases, "a test without cases asserts nothing"
    failed: list[str] = []
    errors: list[Exception] = []
    for name, case in cases:
        try:
            check(case, **fixtures)
        except Exception as error:
            error.add_note(f"in the case {name!r}")
            failed.append(name)
            errors.append(error)
    if failed:
        text = f"{len(failed)} of {len(cases)} cases fail: {', '.join(failed)}"
        raise ExceptionGroup(text, errors[:MOST_SHOWN])
