"""Lists the served models (`Catalog`), as the heartbeats of preprocessors and workers describe them
(`ModelCatalog`).

A model stays listed while a successor of its last process is expected (`recovery_s`): requests for
it wait.
"""

from collections.abc import Iterator
from typing import Protocol

from msgspec.structs import replace
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from schemas.control import INNER_STAGES, THINKING_BUDGET, VISION, Heartbeat, ModelCard, Stage
from schemas.conversation import Conversation
from schemas.errors import RETRY_AFTER_S, NotFound, Unavailable
from schemas.notices import SessionPlaced
from services.frontend.models.shared_names import ModelFilter, SharedNames
from services.frontend.peers import Peers
from services.runtime.presence.registry import ProcessRegistry


def allow_all(_card: ModelCard) -> bool:
    """Allows every model."""
    return True


class Catalog(Protocol):
    """The models that are served at the moment."""

    def models(self) -> list[ModelCard]:
        """Returns the models, and after them each with each of its adapters. Do not change the
        list."""
        ...

    def resolve(
        self,
        model: str,
        conversation: Conversation | None = None,
        allows: ModelFilter = allow_all,
    ) -> ModelCard:
        """Returns the model with this name or alias; of models that share an alias, the one of the
        conversation's session.

        `allows`: of models that share an alias, only those that it allows are chosen, unless it
        allows none of them. A model that is named by its own name is returned in any case.

        Raises:
            NotFound: no such model, or its processes are all gone ("model: X").
            Unavailable: there are no models at all.
        """
        ...


class ModelCatalog(Catalog):
    """The models of a frontend. The list is made again after a heartbeat, not for each request."""

    def __init__(
        self,
        registry: ProcessRegistry,
        peers: Peers,
        *,
        default_model: str | None,
        accept_any_model: bool,
    ) -> None:
        self._registry = registry
        self._peers = peers
        self._shared = SharedNames()
        self._default_model = default_model
        self._accept_any_model = accept_any_model
        self._served: list[ModelCard] | None = None
        registry.on_heartbeat.append(self._on_change)
        registry.on_leave.append(self._on_change)
        registry.on_forget.append(self._on_change)

    @override
    def models(self) -> list[ModelCard]:
        """A model is served if a preprocessor describes it and a worker can decode it."""
        if self._served is None:
            cards = self._cards_of("preprocessor")
            workers = self._cards_of("worker")
            names = sorted(cards.keys() & workers.keys())
            deployments = [_merge(cards[name], workers[name]) for name in names]
            adapted = [_with_adapter(card, name) for card in deployments for name in card.adapters]
            self._served = [*deployments, *adapted]
        return self._served

    def _deployments(self) -> list[ModelCard]:
        """The models without their adapters."""
        return [card for card in self.models() if not card.adapter]

    def _cards_of(self, stage: Stage) -> dict[str, list[ModelCard]]:
        """Descriptions of each model, by living processes; where none is left, by processes that
        left recently."""
        former = _group_by_name(self._registry.former(stage))
        return former | _group_by_name(self._registry.living(stage))

    def _on_change(self, heartbeat: Heartbeat) -> None:
        if heartbeat.stage in ("preprocessor", "worker"):
            self._served = None

    @override
    def resolve(
        self,
        model: str,
        conversation: Conversation | None = None,
        allows: ModelFilter = allow_all,
    ) -> ModelCard:
        for name in self._names(model):
            card = self._find(name, conversation, allows)
            if card is not None:
                return card
        if not self.models():
            raise Unavailable(
                "no model is being served at the moment: a stage is starting, down, or of another "
                "protocol",
                retry_after_s=RETRY_AFTER_S,
            )
        raise NotFound(f"model: {model}")

    def _names(self, model: str) -> list[str]:
        """Returns the names of models that a request for `model` may mean, the first one first."""
        names = [model]
        if model and not self._accept_any_model:
            return names
        cards = self._deployments()
        if self._default_model:
            names.append(self._default_model)
        elif len(cards) == 1:
            names.append(cards[0].name)
        return names

    def _find(
        self, name: str, conversation: Conversation | None, allows: ModelFilter
    ) -> ModelCard | None:
        """Returns the model with exactly this name, or one of those with this alias. The names of
        models precede those of adapters."""
        adapted = [card for card in self.models() if card.adapter]
        deployments = self._deployments()
        return self._find_among(deployments, name, conversation, allows) or self._find_among(
            adapted, name, conversation, allows
        )

    def _find_among(
        self,
        cards: list[ModelCard],
        name: str,
        conversation: Conversation | None,
        allows: ModelFilter,
    ) -> ModelCard | None:
        for card in cards:
            if name == card.served_name:
                return card
        matches = [card for card in cards if name in card.aliases]
        if not any(map(allows, matches)):
            return matches[0] if matches else None
        # Also with one match: its sessions must stay when another model with this alias starts.
        able = [card for card in matches if self.takes_turns(card.name)]
        if not any(map(allows, able)):
            able = matches
        chosen, placed = self._shared.choose(name, able, conversation, allows)
        for notice in placed:
            self._peers.publish(notice)
        return chosen

    def apply(self, notice: SessionPlaced) -> None:
        """Applies another frontend's notice of a session's model."""
        self._shared.apply(notice)

    def ready_models(self) -> list[str]:
        """Returns the models for which every stage takes turns."""
        return [card.name for card in self._deployments() if self.takes_turns(card.name)]

    def takes_turns(self, model: str) -> bool:
        """Returns whether every stage of a model takes turns."""
        return all(self._registry.able(stage, model) for stage in INNER_STAGES)

    def processes(self) -> Iterator[tuple[str, Stage, int]]:
        """Yields how many processes of each stage take turns for each model."""
        for card in self._deployments():
            for stage in INNER_STAGES:
                yield card.name, stage, len(self._registry.able(stage, card.name))

    def stages(self) -> dict[str, list[dict[str, object]]]:
        """Returns all processes of the pipeline, for /health."""
        return {stage: list(map(_describe, self._registry.living(stage))) for stage in INNER_STAGES}


class ModelProcesses(Collector):
    """Counts the processes that take turns, for each model and stage; zero after a model's last one
    has left."""

    def __init__(self, catalog: ModelCatalog) -> None:
        self._catalog = catalog

    def collect(self) -> Iterator[Metric]:
        """Yields the metric."""
        text = "Processes that take turns for a model, by stage, as this frontend sees them."
        family = GaugeMetricFamily("turnwire_model_processes", text, labels=["model", "of"])
        for model, stage, count in self._catalog.processes():
            family.add_metric([model, stage], count)
        yield family


def _describe(peer: Heartbeat) -> dict[str, object]:
    return {
        "id": peer.id,
        "draining": peer.draining,
        "running": peer.load.running,
        "slots": peer.load.slots,
    }


def _group_by_name(heartbeats: Iterator[Heartbeat]) -> dict[str, list[ModelCard]]:
    cards: dict[str, list[ModelCard]] = {}
    for heartbeat in heartbeats:
        for card in heartbeat.models:
            cards.setdefault(card.name, []).append(card)
    return cards


def _merge(cards: list[ModelCard], workers: list[ModelCard]) -> ModelCard:
    """Merges the preprocessors' descriptions of a model with its workers' abilities."""
    card = cards[0]
    features = set.intersection(*(set(worker.features) for worker in workers))
    for feature in (THINKING_BUDGET, VISION):  # of both stages
        if not all(feature in described.features for described in cards):
            features.discard(feature)
    lengths = [card.max_model_len, max(worker.max_model_len for worker in workers)]
    known_lengths = [length for length in lengths if length]
    return replace(
        card,
        max_model_len=min(known_lengths, default=0),
        features=sorted(features),
        engine=workers[0].engine,
        weight=sum(described.weight for described in cards) / len(cards),
        adapters=_adapters(cards, workers),
        weights_version=max(worker.weights_version for worker in workers),
    )


def _adapters(cards: list[ModelCard], workers: list[ModelCard]) -> list[str]:
    """The adapters of any worker. None if a preprocessor would drop their names: its prompts would
    be decoded without them."""
    if not all(card.passes_adapters for card in cards):
        return []
    return sorted({adapter for worker in workers for adapter in worker.adapters})


def _with_adapter(card: ModelCard, adapter: str) -> ModelCard:
    """A model with one of its adapters, which is found under its own name, too."""
    aliases = [adapter, *(f"{alias}:{adapter}" for alias in card.aliases)]
    return replace(card, adapter=adapter, aliases=aliases)
