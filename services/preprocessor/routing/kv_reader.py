"""Applies the KV updates of a model's workers to a `KvIndex`.

All preprocessors receive the same updates, and so agree. Updates are numbered. After a missed one,
and for a worker that started earlier, the reader requests a snapshot. Until that arrives, the index
keeps what it has of the worker, since it only decides the order in which workers are tried."""

from collections import Counter

import msgspec

from schemas import subjects
from schemas.control import Heartbeat, KvSnapshot, KvUpdate
from schemas.errors import TurnwireError
from services.preprocessor.routing.kv_index import KvIndex
from services.runtime.nats.bus import Delivery
from services.runtime.presence.registry import cards_of
from services.runtime.process import Process
from services.tokenization.block_keys import unpack

SNAPSHOT_TIMEOUT_S = 5.0

_decode_update = msgspec.json.Decoder(KvUpdate).decode
_decode_snapshot = msgspec.json.Decoder(KvSnapshot).decode


class KvEventReader:
    """Applies the workers' KV updates to an index."""

    def __init__(self, process: Process, model: str, index: KvIndex) -> None:
        self._process = process
        self._model = model
        self._index = index
        self._seqs: Counter[str] = Counter()
        """The last update in the index, by worker."""
        self._pending: dict[str, list[KvUpdate]] = {}
        """Updates that arrive while a worker's snapshot is being fetched."""

    async def start(self) -> None:
        """Subscribes, and requests the blocks of the present workers."""
        registry = self._process.registry
        registry.on_heartbeat.append(self._on_heartbeat)
        registry.on_leave.append(self._on_leave)
        await self._process.subscribe(subjects.every_kv(self._model), self._on_update)
        for heartbeat in list(registry.living("worker")):
            self._on_heartbeat(heartbeat)

    def publishes_blocks(self, heartbeat: Heartbeat) -> bool:
        """Whether the heartbeat is from a worker that publishes which blocks it holds."""
        if heartbeat.stage != "worker":
            return False
        return any(card.block_tokens for card in cards_of([heartbeat], self._model))

    def _on_heartbeat(self, heartbeat: Heartbeat) -> None:
        # Repeated with each heartbeat until the worker has answered: before the request, it
        # publishes nothing.
        if heartbeat.id not in self._seqs and self.publishes_blocks(heartbeat):
            self._request_snapshot(heartbeat.id)

    def _on_leave(self, heartbeat: Heartbeat) -> None:
        self._index.forget(heartbeat.id)
        self._seqs.pop(heartbeat.id, None)

    def _on_update(self, delivery: Delivery) -> None:
        update = _decode_update(delivery.data)
        if self._process.registry.get("worker", update.worker) is None:
            return  # its heartbeat makes this reader request a snapshot
        if update.worker in self._pending:
            self._pending[update.worker].append(update)
        else:
            self._apply([update])

    def _apply(self, updates: list[KvUpdate]) -> None:
        """Applies updates of one worker, in order. At a gap, the rest waits for a snapshot."""
        for index, update in enumerate(updates):
            expected = self._seqs[update.worker] + 1
            if update.seq > expected:
                self._request_snapshot(update.worker)
                self._pending[update.worker] += updates[index:]
                return
            if update.seq == expected:
                self._apply_next(update)

    def _apply_next(self, update: KvUpdate) -> None:
        worker = update.worker
        self._seqs[worker] = update.seq
        if update.cleared:
            self._index.forget(worker)
        self._index.set_ends(worker, update.ends)
        self._index.remove(worker, unpack(update.removed))
        self._index.add(worker, unpack(update.stored))
        self._index.remove_offloaded(worker, unpack(update.unloaded))
        self._index.add_offloaded(worker, unpack(update.offloaded))

    def _request_snapshot(self, worker: str) -> None:
        if worker not in self._pending:
            self._pending[worker] = []
            self._process.spawn(self._read_snapshot(worker), f"kv snapshot {worker}")

    async def _read_snapshot(self, worker: str) -> None:
        snapshot = await self._fetch_snapshot(worker)
        missed = self._pending.pop(worker, [])
        if self._process.registry.get("worker", worker) is None:
            return
        if snapshot is not None:
            self._index.forget(worker)
            self._index.set_ends(worker, snapshot.ends)
            self._seqs[worker] = snapshot.seq
            self._index.add(worker, unpack(snapshot.keys))
            self._index.add_offloaded(worker, unpack(snapshot.offloaded))
        elif missed:
            # Earlier updates stay unknown; the next gap requests again.
            self._seqs[worker] = missed[0].seq - 1
        self._apply(missed)

    async def _fetch_snapshot(self, worker: str) -> KvSnapshot | None:
        """Requests the keys of a worker's blocks; None: it sends none that can be read."""
        subject = subjects.kv_snapshot(self._model, worker)
        try:
            answer = await self._process.bus.request(subject, b"{}", SNAPSHOT_TIMEOUT_S)
            snapshot = _decode_snapshot(answer)
            unpack(snapshot.keys + snapshot.offloaded)  # raises for a wrong length
            return snapshot
        except (TurnwireError, msgspec.MsgspecError, ValueError) as error:
            self._process.log.info("preprocessor.kv_unknown", worker=worker, error=str(error))
            return None
