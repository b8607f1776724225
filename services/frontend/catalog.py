"""Which models are served, as the beats tell: put together once for each beat, not for each request. Pure."""

from collections.abc import Iterator

from msgspec.structs import replace

from schemas.control import Beat, ModelCard, Stage
from schemas.errors import NotFound, Unavailable
from services.runtime.registry import Registry

INNER_STAGES: tuple[Stage, ...] = ("preprocessor", "worker", "parser")


class Catalog:
    """The models of a frontend."""

    def __init__(self, registry: Registry, *, default_model: str | None, accept_any_model: bool) -> None:
        self._registry = registry
        self._default_model = default_model
        self._accept_any_model = accept_any_model
        self._served: list[ModelCard] | None = None
        registry.on_beat(self._changed)
        registry.on_leave(self._changed)

    def models(self) -> list[ModelCard]:
        """What a preprocessor describes and a worker can decode. Not to be changed."""
        if self._served is None:
            self._served = self._put_together()
        return self._served

    def _changed(self, beat: Beat) -> None:
        if beat.stage in ("preprocessor", "worker"):
            self._served = None

    def _put_together(self) -> list[ModelCard]:
        cards: dict[str, ModelCard] = {}
        for card in _cards(self._registry.living("preprocessor")):
            cards.setdefault(card.name, card)
        workers: dict[str, list[ModelCard]] = {}
        for own in _cards(self._registry.living("worker")):
            workers.setdefault(own.name, []).append(own)
        served = [_served(card, workers[name]) for name, card in cards.items() if name in workers]
        return sorted(served, key=lambda card: card.name)

    def resolve(self, model: str) -> ModelCard:
        """The model with this name or alias. A model whose processes are all gone is not found: nothing tells that
        it was.

        Raises:
            NotFound: there is none of that name.
            Unavailable: there is none at all.
        """
        cards = self.models()
        for card in cards:
            if model == card.name or model in card.aliases:
                return card
        if self._accept_any_model or not model:
            fallback = self._default_model or (cards[0].name if len(cards) == 1 else None)
            for card in cards:
                if fallback is not None and (fallback == card.name or fallback in card.aliases):
                    return card
        if not cards:
            raise Unavailable("no model is being served at the moment: the pipeline is starting, or a stage is down")
        raise NotFound(f"model: {model}")

    def ready(self) -> list[str]:
        """The models of which every stage takes turns."""
        able = self._registry.able
        return [card.name for card in self.models() if all(able(stage, card.name) for stage in INNER_STAGES)]

    def stages(self) -> dict[str, list[dict[str, object]]]:
        """Every process behind this frontend, for /health."""
        return {
            stage: [
                {"id": beat.id, "draining": beat.draining, "running": beat.load.running, "slots": beat.load.slots}
                for beat in self._registry.living(stage)
            ]
            for stage in INNER_STAGES
        }


def _cards(beats: Iterator[Beat]) -> Iterator[ModelCard]:
    return (card for beat in beats for card in beat.models)


def _served(card: ModelCard, workers: list[ModelCard]) -> ModelCard:
    """What a preprocessor says of a model, with what its workers can do."""
    lengths = [length for length in (card.max_model_len, max(own.max_model_len for own in workers)) if length]
    return replace(
        card,
        max_model_len=min(lengths, default=0),
        features=sorted(set.intersection(*(set(own.features) for own in workers))),
        engine=workers[0].engine,
    )
