"""Steps and prefills of all turns, which can be paused together."""

from collections.abc import Callable
from typing import Generic, TypeVar

from turnwire_tools.script.prefills import PrefillQueue
from turnwire_tools.script.ticker import Ticker

T = TypeVar("T")


class Steps(Generic[T]):
    """The work of one engine."""

    def __init__(self, step: Callable[[T, int], int | None]) -> None:
        """`step`: as for `Ticker`."""
        self.ticker = Ticker(step)
        self.prefills = PrefillQueue(self.ticker.add)
        self.paused = False
        self._taken: list[T] = []
        """The items that step again after the pause."""

    def pause(self) -> None:
        """Steps and prefills nothing until `resume`. Items may still be added to `prefills`."""
        self.paused = True
        self._taken += self.ticker.take_all()
        self.prefills.pause()

    def resume(self) -> None:
        """Goes on."""
        self.paused = False
        for item in self._taken:
            self.ticker.add(item)
        self._taken = []
        self.prefills.resume()

    def stop(self) -> None:
        """Drops all items."""
        self._taken = []
        self.prefills.stop()
        self.ticker.stop()
