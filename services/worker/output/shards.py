"""Chooses the parser shard of each stream, and moves the streams of a shard that is gone to another
one."""

import asyncio
from operator import attrgetter

from schemas.control import Heartbeat
from services.runtime.process import Process
from services.runtime.streams.frames import FrameSender
from services.worker.output.outbox import Outbox
from services.worker.output.pacing import Pacer


class ParserShards:
    """The parser shards of one model, as a worker sees them."""

    def __init__(
        self, process: Process, model: str, outbox: Outbox, sender: FrameSender, pacer: Pacer
    ) -> None:
        self._registry = process.registry
        self._log = process.log
        self._model = model
        self._outbox = outbox
        self._sender = sender
        self._pacer = pacer
        self._orphans: set[str] = set()
        """Shards that are gone, with streams that no other shard has yet."""
        self._registry.on_heartbeat.append(self._heartbeat)

    def choose(self, requested: str) -> str:
        """Returns the requested shard, or another one if that is gone."""
        if self._registry.get("parser", requested):
            return requested
        successor = self._least_busy()
        if not successor:
            self._registry.expect_heartbeats("parser", requested, asyncio.get_running_loop().time())
        return successor or requested

    def left(self, heartbeat: Heartbeat) -> None:
        """Moves the streams of a shard that is gone to another one, as soon as there is one."""
        self._sender.forget(heartbeat.id)
        self._pacer.forget(heartbeat.id)
        if heartbeat.leaving and not heartbeat.load.running:
            living = {frontend.id for frontend in self._registry.living("frontend")}
            self._outbox.confirm(heartbeat.id, living)
        self._orphans.add(heartbeat.id)
        self._reassign()

    def _heartbeat(self, heartbeat: Heartbeat) -> None:
        # Not only first heartbeats: those accept no work.
        if heartbeat.stage == "parser" and self._orphans:
            self._reassign()

    def _least_busy(self) -> str:
        """Returns the shard with the fewest turns; "" if there is none."""
        shards = self._registry.able("parser", self._model)
        if not shards:
            return ""
        return min(shards, key=attrgetter("load.running")).id

    def _reassign(self) -> None:
        successor = self._least_busy()
        if not successor:
            return
        for gone in self._orphans:
            self._sender.forget(gone)
            moved = self._outbox.move(gone, successor)
            if moved:
                self._log.warning("worker.shard_lost", shard=gone, heir=successor, streams=moved)
                self._sender.schedule(successor)
        self._orphans.clear()
