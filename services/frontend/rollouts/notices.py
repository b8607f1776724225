"""Wakes the followers of a rollout when it changes, and ends the turns that it cancels."""

import asyncio
from collections import defaultdict
from contextlib import suppress
from typing import Protocol
from weakref import WeakValueDictionary

from schemas.notices import RolloutChanged
from services.runtime.storage.kv import place_of

NEWS_S = 1.0
"""How long a follower waits for a notice before it looks itself: a notice may be lost."""


class Abortable(Protocol):
    """A turn that this frontend runs."""

    def abort(self, why: str, run: int) -> None:
        """Ends a turn of this run with an error for its client. `why`: as in
        `RolloutChanged.cancels`."""
        ...


class RolloutNotices:
    """The followers and the open turns of all rollouts in one frontend, by the places of these."""

    def __init__(self) -> None:
        self._news: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        """The events of rollouts that are followed, each set at the next change."""
        self._open: defaultdict[str, set[Abortable]] = defaultdict(set)

    def apply(self, notice: RolloutChanged) -> None:
        """Applies a notice of this or another frontend."""
        news = self._news.pop(notice.place, None)
        if news is not None:
            news.set()
        if notice.cancels:
            for turn in [*self._open.get(notice.place, ())]:
                turn.abort(notice.cancels, notice.run)

    def news_of(self, id: str) -> asyncio.Event:
        """Returns an event that the next change of a rollout sets."""
        place = place_of(id)
        news = self._news.get(place)
        if news is None:
            news = self._news[place] = asyncio.Event()
        return news

    def add_turn(self, id: str, turn: Abortable) -> None:
        """Has a turn end when its rollout is aborted."""
        self._open[place_of(id)].add(turn)

    def remove_turn(self, id: str, turn: Abortable) -> None:
        """Notes that a turn has ended."""
        place = place_of(id)
        self._open[place].discard(turn)
        if not self._open[place]:
            del self._open[place]


async def wait_for_news(news: asyncio.Event) -> None:
    """Returns when there are news, or after `NEWS_S`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(NEWS_S):
            await news.wait()
