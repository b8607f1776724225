"""Where a prepared turn goes: the router over the loads in the registry and the index of who holds which blocks."""

import asyncio
from collections.abc import Sequence

from prometheus_client import Counter

from schemas.control import Beat, ModelCard, Stage
from schemas.conversation import Conversation
from schemas.frames import TurnRequest
from services.preprocessor.kv_feed import KvFeed
from services.preprocessor.kv_index import KvIndex
from services.preprocessor.routing import Router, Wanted, Weights
from services.runtime.block_keys import KeyMemo
from services.runtime.process import Process

LATE_BEATS = 1.5
"""A process whose beat is so many intervals old is asked last."""


class Placement:
    """Chooses worker and parser shard for the turns of one model."""

    def __init__(self, process: Process, model: str, weights: Weights) -> None:
        self._process = process
        self._model = model
        self._router = Router(weights)
        self._index = KvIndex()
        self._keys: dict[int, KeyMemo] = {}
        """By tokens per block."""
        self._feed = KvFeed(process, model, self._index)
        self._following = False
        process.registry.on_beat(self._router.heard)
        process.registry.on_leave(self._router.left)
        self._prompt_tokens = Counter(
            "turnwire_router_prompt_tokens",
            "Tokens of prompts that were placed among several workers.",
            registry=process.metrics,
        )
        self._held_tokens = Counter(
            "turnwire_router_overlap_tokens",
            "Those of them that the worker which was asked first held in its KV cache.",
            registry=process.metrics,
        )

    def start(self) -> None:
        """Follows the workers' word on their caches as soon as there is more than one to choose from: with a single one
        it decides nothing, and is a message per turn."""
        self._process.registry.on_join(self._look)
        self._look(None)

    def follow(self) -> None:
        """Follows the workers' word on their caches from now on."""
        if not self._following:
            self._following = True
            self._process.spawn(self._feed.start(), "kv feed")

    def _look(self, _joined: Beat | None) -> None:
        if sum(map(self._feed.tells, self._process.registry.living("worker"))) > 1:
            self.follow()

    def workers(self, request: TurnRequest, prompt: bytes) -> list[str]:
        """The workers to ask, best first. `prompt`: `pack_ids`. Raises Unavailable, Overloaded."""
        able, late = self._beats("worker")
        conversation = request.conversation
        wanted = Wanted(output_tokens=conversation.hints.osl)
        if len(able) > 1:
            wanted = Wanted(len(prompt) // 4, self._held(able, prompt, self.salt(conversation)), conversation.hints.osl)
        best = self._router.workers(able, avoid=request.avoid, late=late, wanted=wanted)
        if len(able) > 1:
            self._prompt_tokens.inc(wanted.prompt_tokens)
            self._held_tokens.inc(wanted.held.get(best[0], 0))
            self._process.log.debug(
                "preprocessor.placed",
                turn=request.turn,
                prompt_tokens=wanted.prompt_tokens,
                held=wanted.held,
                cost={beat.id: round(self._router.cost(beat, wanted)) for beat in able},
                first=best[0],
            )
        return best

    def shard(self) -> str:
        """The parser shard for the next turn. Raises Unavailable."""
        able, late = self._beats("parser")
        return self._router.parser(able, late=late)

    def assigned(self, *processes: str) -> None:
        """A turn is being given to them. Said before they answer: turns that come together must not all see the same
        worker idle."""
        for process in processes:
            self._router.assigned(process)

    def taken(self, worker: str, prompt: bytes, conversation: Conversation) -> None:
        """A worker has the turn. It will hold the prompt's blocks: the session's next turn may be here before the
        worker's own word on that, which comes up to 20 ms later."""
        if self._following:
            beat = self._process.registry.get("worker", worker)
            salt = self.salt(conversation)
            for size in {card.block_tokens for card in self._cards([beat] if beat is not None else [])} - {0}:
                self._index.stored(worker, self._blocks(prompt, size, salt))

    def returned(self, *processes: str) -> None:
        """It was not taken."""
        for process in processes:
            self._router.returned(process)

    def salt(self, conversation: Conversation) -> str | None:
        """What keeps this prompt's KV blocks apart: the client's own salt, and its tenant's where the engine can.

        A salt that the client asks for and the engine does not know is refused by the worker.
        """
        own, tenant = conversation.hints.cache_salt, conversation.client.tenant
        if tenant is not None and any("salt" not in card.features for card in self._cards(self._beats("worker")[0])):
            tenant = None
        if own is None:
            return tenant
        return f"{tenant or ''}\n{own}"

    def held_by(self, worker: str, prompt: bytes, conversation: Conversation) -> int | None:
        """Leading tokens of a prompt that one worker holds; None where it is gone, or takes nothing new."""
        able = [beat for beat in self._beats("worker")[0] if beat.id == worker]
        return self._held(able, prompt, self.salt(conversation)).get(worker, 0) if able else None

    def _held(self, workers: Sequence[Beat], prompt: bytes, salt: str | None) -> dict[str, int]:
        """Leading tokens of the prompt that each worker has."""
        held: dict[str, int] = {}
        for size in {card.block_tokens for card in self._cards(workers)} - {0}:
            for worker, blocks in self._index.overlaps(self._blocks(prompt, size, salt)).items():
                held[worker] = max(held.get(worker, 0), blocks * size)
        return held

    def _blocks(self, prompt: bytes, size: int, salt: str | None) -> list[int]:
        """The keys of a prompt's whole blocks."""
        return self._keys.setdefault(size, KeyMemo(size)).keys(prompt, salt=salt)

    def _cards(self, workers: Sequence[Beat]) -> list[ModelCard]:
        return [card for beat in workers for card in beat.models if card.name == self._model]

    def _beats(self, stage: Stage) -> tuple[list[Beat], set[str]]:
        """The processes of a stage that take work, and which of them are late."""
        registry, now = self._process.registry, asyncio.get_running_loop().time()
        able = registry.able(stage, self._model)
        limit = LATE_BEATS * self._process.config.bus.beat_interval_s
        return able, {beat.id for beat in able if registry.age(stage, beat.id, now) > limit}
