"""Reads what a running engine of TensorRT-LLM reports beside its outputs: statistics, KV events and
health."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

from services.worker.engine import EngineInfo
from services.worker.engines.open_turns import OpenTurns
from services.worker.engines.trtllm.events import KvUse, TrtllmKvTranslator
from services.worker.engines.trtllm.pollers import Deliver, Follower, Poller
from services.worker.engines.trtllm.releases import Release
from services.worker.engines.trtllm.requests import BLOCK_TOKENS
from services.worker.kv.events import CacheCleared, KvEvent

HEALTH_INTERVAL_S = 2.0
HEALTH_TIMEOUT_S = 30.0
STATS_INTERVAL_S = 0.5
KV_INTERVAL_S = 0.02
POLL_TIMEOUT_S = 0.5
FOLLOW_TIMEOUT_S = 600.0
"""Longer than any prefill: after a timeout the iterator yields nothing until the next request."""
FOLLOW_INTERVAL_S = 0.1
MAX_EVENTS = 65_536
"""KV events that wait to be read."""


class KvEventQueue:
    """A queue of KV events for one reader. A reader that is too slow gets a `CacheCleared` in place
    of lost events."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[KvEvent | None] = asyncio.Queue()

    def put(self, events: list[KvEvent]) -> None:
        """Adds events."""
        if self._events.qsize() + len(events) > MAX_EVENTS:
            while not self._events.empty():
                self._events.get_nowait()
            events = [CacheCleared()]
        for event in events:
            self._events.put_nowait(event)

    def close(self) -> None:
        """Ends `read`."""
        self._events.put_nowait(None)

    async def read(self) -> AsyncGenerator[KvEvent, None]:
        """Yields the events until `close`."""
        event = await self._events.get()
        while event is not None:
            yield event
            event = await self._events.get()


class EngineReaders:
    """The readers of one engine, and what they have read. Nothing can be read before the first
    response of the engine."""

    def __init__(self, turns: OpenTurns) -> None:
        self._turns = turns
        self._readers: list[Follower | Poller] = []
        self._iteration: Any = None
        """The number of the last iteration that was reported."""
        self._healthy_at = 0.0
        self._kv_use = KvUse()
        self.kv_events = KvEventQueue()

    @property
    def kv_used(self) -> float | None:
        """The share of the KV cache in use; None until statistics have it."""
        return self._kv_use.share

    def begin(self, llm: Any, release: Release, info: EngineInfo) -> None:
        """Starts to read. Later calls do nothing."""
        if self._readers:
            return
        stats = _open_lists(
            llm, release, "get_stats", list, self._note_stats, interval_s=STATS_INTERVAL_S
        )
        self._readers.append(stats)
        if "kv_events" in info.features:
            translate = TrtllmKvTranslator(info.block_tokens or BLOCK_TOKENS).translate
            method = "get_kv_cache_events"
            put = self.kv_events.put
            events = _open_lists(llm, release, method, translate, put, interval_s=KV_INTERVAL_S)
            self._readers.append(events)
        # Not public, and missing in early 1.2.
        check = getattr(llm, "_check_health", None)
        if check is not None:
            self._healthy_at = time.monotonic()
            read_health = partial(_read_health, check)
            health = Poller("trtllm-health", read_health, self._note_health, HEALTH_INTERVAL_S)
            self._readers.append(health)

    def stop(self) -> None:
        """Stops reading, and ends the KV events."""
        for reader in self._readers:
            reader.stop()
        self.kv_events.close()

    def join(self, deadline: float) -> None:
        """Waits for the calls that are under way, until `deadline` (`time.monotonic`)."""
        for reader in self._readers:
            rest_s = deadline - time.monotonic()
            reader.join(max(0.0, min(POLL_TIMEOUT_S, rest_s)))

    def late_health_check(self) -> str | None:
        """Returns why the engine is dead if its health check does not return."""
        if not self._healthy_at:
            return None
        if time.monotonic() - self._healthy_at <= HEALTH_INTERVAL_S + HEALTH_TIMEOUT_S:
            return None
        return f"its health check did not return in {HEALTH_TIMEOUT_S:.0f} s"

    def _note_stats(self, iterations: list[Any]) -> None:
        for stats in iterations:
            if not isinstance(stats, dict):
                continue
            self._kv_use.note(stats)
            # A long prefill has iterations without outputs.
            if stats.get("iter") != self._iteration:
                self._iteration = stats.get("iter")
                self._turns.stepped()

    def _note_health(self, health: tuple[bool]) -> None:
        self._healthy_at = time.monotonic()
        if not health[0]:
            self._turns.die("its health check failed")


def _read_health(check: Any) -> tuple[bool]:
    """Calls the library's check. In a tuple, because a `Poller` does not pass on what is empty."""
    return (bool(check()),)


def _open_lists(
    llm: Any,
    release: Release,
    method: str,
    translate: Callable[[list[Any]], list[Any]],
    deliver: Deliver,
    *,
    interval_s: float,
) -> Follower | Poller:
    """Reads the lists of a method of the library. `translate` runs where they are read, `deliver`
    on the event loop; `interval_s`: between two calls."""
    if release.statistics == "iterator":
        follow = partial(getattr(llm, f"{method}_async"), FOLLOW_TIMEOUT_S)
        return Follower(follow, lambda items: deliver(translate(items)), FOLLOW_INTERVAL_S)
    poll = partial(getattr(llm, method), timeout=POLL_TIMEOUT_S)
    return Poller(f"trtllm-{method}", lambda: translate(poll() or []), deliver, interval_s)
