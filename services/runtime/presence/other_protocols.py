"""Notes processes with another protocol, which are not used: logs each of them once, and counts the
living.

Subjects have the number of their protocol, so that only heartbeats reach processes of another one.
"""

import time

from cachetools import LRUCache
from prometheus_client import CollectorRegistry

from schemas import subjects
from services.runtime.observability.log_lines import RateLimit
from services.runtime.observability.metrics import CountCollector, Reading
from services.runtime.observability.telemetry import FilteringBoundLogger

MAX_PROCESSES = 4096
"""Processes that are remembered: without permissions on the bus, any client can invent some."""


class OtherProtocols:
    """The processes of other protocols that one process has heartbeats of."""

    def __init__(
        self, dead_after_s: float, metrics: CollectorRegistry, log: FilteringBoundLogger
    ) -> None:
        self._dead_after_s = dead_after_s
        self._log = log
        self._limit = RateLimit()
        self._seen: LRUCache[str, tuple[float, bool]] = LRUCache(MAX_PROCESSES)
        """Subject, which names the process → time of its last heartbeat, and whether the log has
        it."""
        text = "Processes with another protocol, which are not used."
        reading = Reading(text, self, "living")
        metrics.register(CountCollector({"turnwire_other_protocol_processes": reading}))

    def receive(self, subject: str) -> None:
        """Notes a heartbeat, unless it is of this protocol."""
        if subjects.is_own(subject):
            return
        _, logged = self._seen.get(subject, (0.0, False))
        if not logged and self._limit.admit() is not None:  # else at one of its next heartbeats
            protocol, stage, peer = subjects.heartbeat_sender(subject)
            remedy = (
                "not used: it is of a release with another protocol (docs/operations.md, Upgrades)"
            )
            names = {"peer": peer, "peer_stage": stage, "peer_protocol": protocol}
            self._log.warning(
                "process.other_protocol", **names, protocol=subjects.PREFIX, remedy=remedy
            )
            logged = True
        self._seen[subject] = time.monotonic(), logged

    def living(self) -> int:
        """The number of processes with a heartbeat within `dead_after_s`."""
        since = time.monotonic() - self._dead_after_s
        return sum(seen >= since for seen, _ in self._seen.values())
