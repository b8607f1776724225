"""Lists the served models, as the heartbeats of preprocessors and workers describe them.

A model stays listed while a successor of its last process is expected (`recovery_s`): requests for
it wait.
"""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from schemas.control import THINKING_BUDGET, VISION, Heartbeat, ModelCard, SessionPlaced, Stage
from schemas.conversation import Conversation
from schemas.errors import RETRY_AFTER_S, NotFound, Unavailable
from services.frontend.turns.shared_names import SharedNames
from services.frontend.turns.stage_wait import INNER_STAGES
from services.runtime.registry import Registry


class ModelCatalog:
    """The models of a frontend. The list is made again after each heartbeat, not for each request."""

    def __init__(
        self,
        registry: Registry,
        *,
        default_model: str | None,
        accept_any_model: bool,
        publish: Callable[[SessionPlaced], object] = lambda _: None,
    ) -> None:
        """`publish`: sends a notice to the other frontends."""
        self._registry = registry
        self._shared = SharedNames(publish)
        self._default_model = default_model
        self._accept_any_model = accept_any_model
        self._served: list[ModelCard] | None = None
        registry.on_heartbeat(self._on_change)
        registry.on_leave(self._on_change)
        registry.on_forget(self._on_change)

    def models(self) -> list[ModelCard]:
        """Returns the models that a preprocessor describes and a worker can decode. Do not change
        the list."""
        if self._served is None:
            cards, workers = self._cards_of("preprocessor"), self._cards_of("worker")
            self._served = [
                _merge(cards[name], workers[name]) for name in sorted(cards) if name in workers
            ]
        return self._served

    def _cards_of(self, stage: Stage) -> dict[str, list[ModelCard]]:
        """Descriptions of each model, by living processes; where none is left, by processes that
        left recently."""
        former = _group_by_name(self._registry.former(stage))
        return former | _group_by_name(self._registry.living(stage))

    def _on_change(self, heartbeat: Heartbeat) -> None:
        if heartbeat.stage in ("preprocessor", "worker"):
            self._served = None

    def resolve(self, model: str, conversation: Conversation | None = None) -> ModelCard:
        """Returns the model with this name or alias; of models that share an alias, the one of the
        conversation's session.

        Raises:
            NotFound: no such model, or its processes are all gone.
            Unavailable: there are no models at all.
        """
        cards = self.models()
        names = [model]
        if self._accept_any_model or not model:
            names += (
                [self._default_model]
                if self._default_model
                else [card.name for card in cards if len(cards) == 1]
            )
        for name in names:
            for card in cards:
                if name == card.name:
                    return card
            if matches := [card for card in cards if name in card.aliases]:
                # Also with a single match: its sessions must stay when another model with this
                # alias starts.
                able = [card for card in matches if self.takes_turns(card.name)]
                return self._shared.choose(name, able or matches, conversation)
        if not cards:
            message = "no model is being served at the moment: a stage is starting, down, or of another protocol"
            raise Unavailable(message, retry_after_s=RETRY_AFTER_S)
        raise NotFound(f"model: {model}")

    def apply(self, notice: SessionPlaced) -> None:
        """Applies another frontend's notice of a session's model."""
        self._shared.apply(notice)

    def ready(self) -> list[str]:
        """Returns the models for which every stage takes turns."""
        return [card.name for card in self.models() if self.takes_turns(card.name)]

    def takes_turns(self, model: str) -> bool:
        """Returns whether every stage of a model takes turns."""
        return all(self._registry.able(stage, model) for stage in INNER_STAGES)

    def processes(self) -> Iterator[tuple[str, Stage, int]]:
        """Yields how many processes of each stage take turns for each model."""
        for card in self.models():
            for stage in INNER_STAGES:
                yield card.name, stage, len(self._registry.able(stage, card.name))

    def stages(self) -> dict[str, list[dict[str, object]]]:
        """Returns all processes of the pipeline, for /health."""
        return {
            stage: [
                {
                    "id": peer.id,
                    "draining": peer.draining,
                    "running": peer.load.running,
                    "slots": peer.load.slots,
                }
                for peer in self._registry.living(stage)
            ]
            for stage in INNER_STAGES
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
    features = set.intersection(*(set(own.features) for own in workers))
    for shared in (THINKING_BUDGET, VISION):
        if not all(shared in own.features for own in cards):
            features.discard(shared)
    lengths = [
        length
        for length in (card.max_model_len, max(own.max_model_len for own in workers))
        if length
    ]
    return replace(
        card,
        max_model_len=min(lengths, default=0),
        features=sorted(features),
        engine=workers[0].engine,
        weight=sum(own.weight for own in cards) / len(cards),
    )
