"""Selects the key with which a request's reasoning and summaries are sealed: one for the whole
deployment, or one derived from the name of the request's model."""

from collections.abc import Sequence
from functools import cached_property

from typing_extensions import override

from schemas.control import ModelCard
from schemas.errors import TurnwireError
from services.frontend.apis.responses.parse.compaction import TextSealer
from services.frontend.turns.turn_service import ModelAccess
from services.runtime.storage.seal import Sealer, TenantSealer


def sealer_for(name: str, model: ModelAccess, deployment: Sealer | None) -> TextSealer:
    """The sealer for a request.

    Args:
        name: the model's name or alias in the request.
        deployment: has the key for all models; None if there is no such key.
    """
    if deployment is not None:
        return deployment.of(model.context.tenant)
    return ModelSealer(name, model)


class ModelSealer(TextSealer):
    """Seals with a key derived from the name of the request's model. Raises NotFound on first use
    if it is not served.

    A conversation is read before its session, and so its model, is known. Therefore the sealers of
    all models that share the alias are tried. These models are looked up in advance, because a
    large request is read in a thread.
    """

    def __init__(self, name: str, model: ModelAccess) -> None:
        """`name`: the model's name or alias in the request."""
        self._model = model
        self._named: Sequence[ModelCard] = ()
        self._refusal: TurnwireError | None = None
        try:
            self._named = _models_named(name, model)
        except TurnwireError as refusal:  # a request without seals gets another error first
            self._refusal = refusal.with_traceback(None)

    @override
    def seal(self, text: str) -> str:
        sealers = self._session_sealers() or self._name_sealers
        return sealers[0].seal(text)

    @override
    def open(self, blob: str) -> str | None:
        texts = (sealer.open(blob) for sealer in [*self._session_sealers(), *self._name_sealers])
        return next((text for text in texts if text is not None), None)

    def _session_sealers(self) -> list[TenantSealer]:
        """The sealer of the request's model, once that is looked up for the session."""
        card = self._model.card
        return [] if card is None else [self._load(card)]

    @cached_property
    def _name_sealers(self) -> list[TenantSealer]:
        """The sealers of the models with this name."""
        if self._refusal is not None:
            raise self._refusal
        return [self._load(card) for card in self._named]

    def _load(self, card: ModelCard) -> TenantSealer:
        return Sealer.load(None, card.name).of(self._model.context.tenant)


def _models_named(name: str, model: ModelAccess) -> list[ModelCard]:
    """Returns the models with this name or alias. Raises as `Admission.resolve`."""
    admission = model.turns.admission
    caller = model.context.caller
    card = admission.resolve(name, caller)
    others = [
        other for other in admission.models(caller) if set(card.aliases).intersection(other.aliases)
    ]
    return [card, *others]
