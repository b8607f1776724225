"""The KV caches of a model's workers, as one preprocessor knows them: by the updates that workers
publish, and by the prompts that it has sent itself."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from schemas.control import Heartbeat
from services.preprocessor.routing.kv_index import KvIndex
from services.preprocessor.routing.kv_reader import KvEventReader
from services.runtime.process import Process
from services.tokenization.block_keys import KeyMemo, PromptKeys


class BlockKeys(NamedTuple):
    """The keys of a prompt's blocks."""

    keys: Sequence[int] = ()
    """Made on demand."""
    block_tokens: int = 1


class KvView:
    """The KV blocks of one model's workers. `sizes` are numbers of tokens per block; `prompt` is
    `PreparedTurn.block_key_ids`, and `salt` is `GenerateRequest.cache_salt`."""

    def __init__(self, process: Process, model: str) -> None:
        self._process = process
        self._index = KvIndex()
        self._reader = KvEventReader(process, model, self._index)
        self._keys: dict[int, KeyMemo] = {}
        """Caches of keys by tokens per block."""
        self._following = False

    def start(self) -> None:
        """Follows the workers' KV caches as soon as there is a second worker: with one worker the
        index decides nothing, and would cost a message per turn."""
        self._process.registry.on_join.append(self._joined)
        self._joined(None)

    def follow(self) -> None:
        """Follows the workers' KV caches from now on."""
        if not self._following:
            self._following = True
            self._process.spawn(self._reader.start(), "kv events")

    def cached_tokens(
        self, prompt: bytes, salt: str | None, sizes: Collection[int]
    ) -> dict[str, int]:
        """Returns how many leading tokens of a prompt each worker can reuse."""
        cached: dict[str, int] = {}
        for size in sizes:
            overlaps = self._index.overlaps(self._memo(size).keys(prompt, salt=salt))
            for worker, blocks in overlaps.items():
                cached[worker] = max(cached.get(worker, 0), blocks * size)
        return cached

    def loadable_tokens(
        self, prompt: bytes, salt: str | None, sizes: Collection[int]
    ) -> dict[str, int]:
        """Returns how many tokens after those in its cache each worker can load from a slower
        memory."""
        loadable: dict[str, int] = {}
        if not self._index.has_offloaded:
            return loadable
        for size in sizes:
            keys = self._memo(size).keys(prompt, salt=salt)
            for worker, blocks in self._index.loadable(keys, self._index.overlaps(keys)).items():
                loadable[worker] = max(loadable.get(worker, 0), blocks * size)
        return loadable

    def add(self, worker: str, prompt: bytes, salt: str | None, sizes: Collection[int]) -> None:
        """Notes that a worker will hold a prompt. Where it can be reused is not known before the
        worker's own update, unless all of it can."""
        if not self._following or self._index.has_ends(worker):
            return
        for size in sizes:
            self._index.add(worker, self._memo(size).keys(prompt, salt=salt))

    def shares_any_beginning(self, worker: str) -> bool:
        """Whether prompts on a worker share whatever blocks they begin with; else only up to some
        ends."""
        return not self._index.has_ends(worker)

    def keys(self, prompt: bytes, salt: str | None, size: int) -> Sequence[int]:
        """Returns the keys of a prompt's blocks, made on demand."""
        return PromptKeys(self._memo(size), prompt, salt)

    def _joined(self, _: Heartbeat | None) -> None:
        workers = self._process.registry.living("worker")
        if sum(map(self._reader.publishes_blocks, workers)) > 1:
            self.follow()

    def _memo(self, size: int) -> KeyMemo:
        return self._keys.setdefault(size, KeyMemo(size))
