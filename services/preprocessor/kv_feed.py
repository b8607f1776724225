"""Keeps a `KvIndex` at what the workers of a model say: every preprocessor hears the same, and so agrees.

Updates are numbered. Where one was missed, and of a worker that was there first, everything is asked for once more;
until the answer is here, what is known of that worker holds, since it only decides who is asked first.
"""

from collections import Counter

import msgspec

from schemas import subjects
from schemas.control import Beat
from schemas.errors import TurnwireError
from schemas.kv import KvSnapshot, KvUpdate
from services.preprocessor.kv_index import KvIndex
from services.runtime.block_keys import unpack
from services.runtime.bus import Message
from services.runtime.process import Process

ASK_TIMEOUT_S = 5.0

_decode_update = msgspec.json.Decoder(KvUpdate).decode
_decode_snapshot = msgspec.json.Decoder(KvSnapshot).decode


class KvFeed:
    """The shell around the index."""

    def __init__(self, process: Process, model: str, index: KvIndex) -> None:
        self._process = process
        self._model = model
        self._index = index
        self._seqs: Counter[str] = Counter()
        """The last update that the index has, by worker."""
        self._asking: dict[str, list[KvUpdate]] = {}
        """What came while a snapshot was under way."""

    async def start(self) -> None:
        """Subscribes, and asks the workers that are there; from now on the index follows."""
        registry = self._process.registry
        registry.on_beat(self._heard)
        registry.on_leave(self._left)
        await self._process.subscribe(subjects.every_kv(self._model), self._update)
        for beat in list(registry.living("worker")):
            self._heard(beat)

    def tells(self, beat: Beat) -> bool:
        """Whether this is a worker that says which blocks it holds."""
        return beat.stage == "worker" and any(card.name == self._model and card.block_tokens for card in beat.models)

    def _heard(self, beat: Beat) -> None:
        # With its first beat, and with each further one until it has answered: whom nobody asks says nothing.
        if beat.id not in self._seqs and self.tells(beat):
            self._ask(beat.id)

    def _left(self, beat: Beat) -> None:
        self._index.forget(beat.id)
        self._seqs.pop(beat.id, None)

    def _update(self, message: Message) -> None:
        update = _decode_update(message.data)
        if update.worker in self._asking:
            self._asking[update.worker].append(update)
        elif update.seq == self._seqs[update.worker] + 1:
            self._apply(update)
        elif update.seq > self._seqs[update.worker]:
            self._ask(update.worker)
            self._asking[update.worker].append(update)

    def _apply(self, update: KvUpdate) -> None:
        self._seqs[update.worker] = update.seq
        if update.cleared:
            self._index.forget(update.worker)
        self._index.removed(update.worker, unpack(update.removed))
        self._index.stored(update.worker, unpack(update.stored))

    def _ask(self, worker: str) -> None:
        if worker not in self._asking:
            self._asking[worker] = []
            self._process.spawn(self._ask_all(worker), f"kv snapshot {worker}")

    async def _ask_all(self, worker: str) -> None:
        subject = subjects.kv_snapshot(self._model, worker)
        try:
            snapshot = _decode_snapshot(await self._process.bus.request(subject, b"{}", ASK_TIMEOUT_S))
            keys = unpack(snapshot.keys)
        except (TurnwireError, msgspec.MsgspecError, ValueError) as error:
            self._process.log.info("preprocessor.kv_unknown", worker=worker, error=str(error))
            snapshot, keys = None, []
        missed = self._asking.pop(worker, [])
        if self._process.registry.get("worker", worker) is None:
            return
        if snapshot is not None:
            self._index.forget(worker)
            self._index.stored(worker, keys)
            self._seqs[worker] = snapshot.seq
        elif missed:
            self._seqs[worker] = missed[0].seq - 1  # what was before stays unknown; the next hole asks again
        for update in missed:
            if update.seq == self._seqs[worker] + 1:
                self._apply(update)
            elif update.seq > self._seqs[worker]:
                self._ask(worker)
                return
