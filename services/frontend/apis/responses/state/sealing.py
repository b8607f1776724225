"""Selects the key with which a request's reasoning and summaries are sealed: one for the whole
deployment, or one derived from the name of the request's model."""

from functools import cached_property

from typing_extensions import override

from schemas.control import ModelCard
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
    all models that share the alias are tried.
    """

    def __init__(self, name: str, model: ModelAccess) -> None:
        """`name`: the model's name or alias in the request."""
        self._name = name
        self._model = model

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
        admission = self._model.turns.admission
        caller = self._model.context.caller
        card = admission.resolve(self._name, caller)
        others = [
            other
            for other in admission.models(caller)
            if set(card.aliases).intersection(other.aliases)
        ]
        return [self._load(served) for served in [card, *others]]

    def _load(self, card: ModelCard) -> TenantSealer:
        return Sealer.load(None, card.name).of(self._model.context.tenant)
