"""Chooses worker and parser of prepared turns, by the loads in the registry and the workers' KV
caches."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace
from prometheus_client import Counter

from schemas.control import Heartbeat, ModelCard, Stage
from schemas.conversation import Conversation
from schemas.errors import NotFound
from schemas.requests import GenerateRequest
from services.preprocessor.prepared_turn import PreparedTurn
from services.preprocessor.routing.kv_view import BlockKeys, KvView
from services.preprocessor.routing.router import Router, TurnProfile
from services.runtime.presence.registry import cards_of
from services.runtime.process import Process
from services.tokenization.block_keys import adapter_salt, weights_salt


@dataclass(slots=True)
class Assignment:
    """What a worker gets of the placement of a turn."""

    parser: str
    """The parser shard."""
    cache_salt: str | None
    """Only turns with the same salt share KV blocks."""
    accepted: bool = False
    """Whether the worker has the turn."""

    def complete(self, request: GenerateRequest) -> GenerateRequest:
        """Returns the request with these facts."""
        return replace(request, parser=self.parser, cache_salt=self.cache_salt)


class Placement:
    """Chooses worker and parser shard for the turns of one model."""

    def __init__(self, process: Process, model: str, router: Router, kv: KvView) -> None:
        self._process = process
        self._model = model
        self._router = router
        self._kv = kv
        process.registry.on_heartbeat.append(self._router.reset)
        process.registry.on_leave.append(self._router.reset)
        self._prompt_tokens = Counter(
            "turnwire_router_prompt_tokens",
            "Tokens of prompts that were placed among several workers.",
            registry=process.metrics,
        )
        self._overlap_tokens = Counter(
            "turnwire_router_overlap_tokens",
            "Tokens of these prompts that the worker tried first had in its KV cache.",
            registry=process.metrics,
        )

    def rank_workers(
        self, turn: PreparedTurn, computing: Mapping[str, int], *, again: bool = False
    ) -> list[str]:
        """The workers to try, best first. `computing`: leading tokens of the prompt that workers
        compute now, which count as cached; `again`: the turn has waited since an earlier call.
        Raises Unavailable, Overloaded, and NotFound if they lack the turn's adapter."""
        able = self._with_adapter(self._able("worker"), turn.request.conversation.adapter)
        late = self._late(able)
        avoid = turn.request.avoid
        if len(able) <= 1:  # the KV caches decide nothing
            profile = TurnProfile(output_tokens=turn.request.conversation.hints.osl)
            return self._router.rank_workers(able, avoid=avoid, late=late, profile=profile)

        profile = self._profile(turn, able, computing)
        ranked = self._router.rank_workers(able, avoid=avoid, late=late, profile=profile)
        first = ranked[0]
        if not again:
            self._prompt_tokens.inc(profile.prompt_tokens)
            self._overlap_tokens.inc(profile.cached.get(first, 0))
        self._process.log.debug(
            "preprocessor.placed",
            turn=turn.request.turn,
            prompt_tokens=profile.prompt_tokens,
            held=profile.cached,
            cost={worker.id: round(self._router.cost(worker, profile)) for worker in able},
            first=first,
        )
        return ranked

    def shares_queued_prefixes(self, worker: str) -> bool:
        """Whether a worker's engine computes the common beginning of queued prompts once."""
        return any(card.shares_queued for card in self._cards(self._present(worker)))

    @contextmanager
    def assign(self, turn: PreparedTurn, worker: str) -> Iterator[Assignment]:
        """Assigns a turn to a worker and to the best parser shard, for the block that sends it. The
        turn counts at both, and after the block only if the worker has accepted it. Raises
        Unavailable if there is no shard."""
        able = self._able("parser")
        parser = self._router.choose_parser(able, late=self._late(able))
        assignment = Assignment(parser, self.cache_salt(turn.request.conversation))
        self._router.assign(worker, parser)
        try:
            yield assignment
        finally:
            if assignment.accepted:
                self._add_blocks(turn, worker)
            else:
                self._router.unassign(worker, parser)

    def _add_blocks(self, turn: PreparedTurn, worker: str) -> None:
        """Notes that a worker will hold the blocks of a turn's prompt. The session's next turn may
        arrive before the worker's own update. A sibling may arrive before the turn's first
        token."""
        present = self._present(worker)
        salt = self._blocks_salt(turn.request.conversation, present)
        self._kv.add(worker, turn.block_key_ids, salt, self._block_sizes(present))

    def cache_salt(self, conversation: Conversation) -> str | None:
        """The salt that separates this prompt's KV blocks: the client's own, the adapter's, and the
        tenant's where all engines support it, those of workers that joined while the turn waited
        among them.

        The worker refuses a client's salt that its engine does not support.
        """
        tenant = conversation.client.tenant
        if tenant is not None:
            cards = self._cards(self._able("worker"))
            if any("salt" not in card.features for card in cards):
                tenant = None
        of_client = conversation.hints.cache_salt
        salt = tenant if of_client is None else f"{tenant or ''}\n{of_client}"
        return adapter_salt(conversation.adapter, salt)

    def _blocks_salt(self, conversation: Conversation, workers: Sequence[Heartbeat]) -> str | None:
        """The salt with which these workers hold the prompt's KV blocks, with the newest version of
        their weights: those with an earlier one hold none that count."""
        salt = self.cache_salt(conversation)
        if conversation.hints.any_weights:
            return salt
        salted = [card for card in self._cards(workers) if "salt" in card.features]
        return weights_salt(max((card.weights_version for card in salted), default=0), salt)

    def cached_tokens(self, worker: str, prompt: bytes, conversation: Conversation) -> int | None:
        """Leading tokens of a prompt that one worker has in its cache; None where the worker is
        gone, or takes no new turns."""
        able = self._able("worker")
        this_worker = [heartbeat for heartbeat in able if heartbeat.id == worker]
        if not this_worker:
            return None
        sizes = self._block_sizes(this_worker)
        salt = self._blocks_salt(conversation, this_worker)
        return self._kv.cached_tokens(prompt, salt, sizes).get(worker, 0)

    def block_keys(self, turn: PreparedTurn) -> BlockKeys:
        """The keys of a prompt's blocks, as large as the largest of any worker; without a worker
        that has a prefix cache there are none."""
        able = self._able("worker")
        sizes = self._block_sizes(able)
        if not sizes:
            return BlockKeys()
        largest = max(sizes)
        salt = self._blocks_salt(turn.request.conversation, able)
        return BlockKeys(self._kv.keys(turn.block_key_ids, salt, largest), largest)

    def _profile(
        self, turn: PreparedTurn, workers: Sequence[Heartbeat], computing: Mapping[str, int]
    ) -> TurnProfile:
        """The facts by which workers are ranked. `computing`: as in `rank_workers`."""
        conversation = turn.request.conversation
        salt = self._blocks_salt(conversation, workers)
        cached = self._kv.cached_tokens(turn.block_key_ids, salt, self._block_sizes(workers))
        for worker, tokens in computing.items():
            if self._kv.shares_any_beginning(worker):
                cached[worker] = max(tokens, cached.get(worker, 0))
        loadable = self._kv.loadable_tokens(turn.block_key_ids, salt, self._block_sizes(workers))
        return TurnProfile(turn.prompt_tokens, cached, conversation.hints.osl, loadable)

    def _with_adapter(self, workers: list[Heartbeat], adapter: str) -> list[Heartbeat]:
        """The workers with an adapter; "": all. Raises NotFound if there are only others."""
        if not adapter:
            return workers
        able = [
            worker
            for worker in workers
            if any(adapter in card.adapters for card in self._cards([worker]))
        ]
        if workers and not able:
            raise NotFound(f"model: {self._model}:{adapter}")
        return able

    def _block_sizes(self, workers: Sequence[Heartbeat]) -> set[int]:
        return {card.block_tokens for card in self._cards(workers) if card.block_tokens}

    def _cards(self, workers: Sequence[Heartbeat]) -> list[ModelCard]:
        """The cards with which these workers describe the model."""
        return cards_of(workers, self._model)

    def _present(self, worker: str) -> list[Heartbeat]:
        """The last heartbeat of a worker; empty: it has left."""
        heartbeat = self._process.registry.get("worker", worker)
        return [] if heartbeat is None else [heartbeat]

    def _able(self, stage: Stage) -> list[Heartbeat]:
        """The processes of a stage that take work."""
        return self._process.registry.able(stage, self._model)

    def _late(self, able: Sequence[Heartbeat]) -> set[str]:
        """Which of these processes are late."""
        registry = self._process.registry
        now = asyncio.get_running_loop().time()
        interval_s = self._process.config.bus.beat_interval_s
        return {peer.id for peer in able if registry.is_late(peer.stage, peer.id, now, interval_s)}
