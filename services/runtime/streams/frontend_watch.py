"""Decides when a frontend is gone, so that no process waits for its turns any more.

A frontend without heartbeats may be suspended, with clients that are still connected and wait. A
dead frontend has no subscription, which NATS reports at once. So its subject is probed; while there
is a subscriber, its turns are kept for `recovery_s`.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from schemas import subjects
from schemas.control import Heartbeat
from schemas.frames import EventFrame
from services.runtime.process import Process


class FrontendWatch:
    """Watches all frontends for one process that has their turns."""

    def __init__(self, process: Process, on_gone: Callable[[str], None]) -> None:
        """`on_gone`: called with the id of a frontend that has left, was lost, or did not come back
        in time."""
        self._process = process
        self._on_gone = on_gone
        self._silent: dict[str, float] = {}
        """Frontend without heartbeats that may come back → the time since."""
        process.registry.on_leave.append(self._left)
        process.registry.on_join.append(self._joined)
        process.on_tick.append(self._tick)

    def _left(self, peer: Heartbeat) -> None:
        if peer.stage != "frontend":
            return
        if peer.leaving or not peer.id:  # without an id it has no subject that could be probed
            self._on_gone(peer.id)
            return
        self._silent[peer.id] = asyncio.get_running_loop().time()
        self._probe(peer.id)

    def _joined(self, peer: Heartbeat) -> None:
        if peer.stage == "frontend" and peer.id in self._silent:
            # rare: a frontend that fell silent is back
            del self._silent[peer.id]

    def _tick(self, now: float) -> None:
        if self._process.cut_off:
            return
        for frontend, since in list(self._silent.items()):
            if now - since >= self._process.config.bus.recovery_s:
                self._gone(frontend)
            else:
                self._probe(frontend)

    def _probe(self, frontend: str) -> None:
        frame = EventFrame.probe(self._process.id)
        self._process.probe(subjects.events(frontend), frame, partial(self._gone, frontend))

    def _gone(self, frontend: str) -> None:
        if self._silent.pop(frontend, None) is not None:
            # rare: a frontend that fell silent is gone
            self._on_gone(frontend)
