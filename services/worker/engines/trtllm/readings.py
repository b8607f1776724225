"""Reads what a running engine of TensorRT-LLM reports beside its outputs: statistics, KV events and
health."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from services.worker.engine import EngineInfo
from services.worker.engines.open_turns import OpenTurns
from services.worker.engines.trtllm.events import KvUse, TrtllmKvTranslator
from services.worker.engines.trtllm.pollers import Deliver, Follower, KvEventQueue, Poller
from services.worker.engines.trtllm.releases import Release
from services.worker.engines.trtllm.requests import BLOCK_TOKENS

HEALTH_INTERVAL_S = 2.0
HEALTH_TIMEOUT_S = 30.0
STATS_INTERVAL_S = 0.5
KV_INTERVAL_S = 0.02
POLL_TIMEOUT_S = 0.5
FOLLOW_TIMEOUT_S = 600.0
"""Longer than any prefill: after a timeout the iterator yields nothing until the next request."""
FOLLOW_INTERVAL_S = 0.1


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
        read = _follow if release.statistics == "iterator" else _poll
        self._readers.append(read(llm, "get_stats", list, self._note_stats, STATS_INTERVAL_S))
        if "kv_events" in info.features:
            translate = TrtllmKvTranslator(info.block_tokens or BLOCK_TOKENS).translate
            put = self.kv_events.put
            self._readers.append(read(llm, "get_kv_cache_events", translate, put, KV_INTERVAL_S))
        # Not public, and missing in early 1.2.
        check = getattr(llm, "_check_health", None)
        if check is not None:
            self._healthy_at = time.monotonic()
            read_health = partial(_read_health, check)
            self._readers.append(
                Poller("trtllm-health", read_health, self._note_health, HEALTH_INTERVAL_S)
            )

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


Translate: TypeAlias = Callable[[list[Any]], list[Any]]
"""What the library reports → what is delivered. Runs where the library is read."""


def _follow(
    llm: Any, method: str, translate: Translate, deliver: Deliver, interval_s: float
) -> Follower:
    """Reads lists with an asynchronous iterator of the library."""
    follow = partial(getattr(llm, f"{method}_async"), FOLLOW_TIMEOUT_S)
    return Follower(follow, lambda items: deliver(translate(items)), FOLLOW_INTERVAL_S)


def _poll(
    llm: Any, method: str, translate: Translate, deliver: Deliver, interval_s: float
) -> Poller:
    """Reads lists with calls of the library, on a thread."""
    poll = partial(getattr(llm, method), timeout=POLL_TIMEOUT_S)
    return Poller(f"trtllm-{method}", lambda: translate(poll() or []), deliver, interval_s)
