"""Calls the listeners of an event. What one raises goes to a function of its owner. Pure."""

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVarTuple

A = TypeVarTuple("A")
OnError: TypeAlias = Callable[[Exception], object]
"""Gets what a listener raised."""


class Listeners(list[Callable[[*A], object]], Generic[*A]):
    """The listeners of one event, in the order in which they are called."""

    def __init__(self, on_error: OnError) -> None:
        super().__init__()
        self._on_error = on_error

    def call(self, *args: *A) -> None:
        """Calls every listener. Raises only what `on_error` raises."""
        for listener in self:
            try:
                listener(*args)
            except Exception as error:
                self._on_error(error)


def raise_error(error: Exception) -> None:
    """Raises what a listener raised, so that the ones after it are not called."""
    raise error
