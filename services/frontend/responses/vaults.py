"""The key with which compacted conversations are sealed: the deployment's, or, without one, each model's."""

from schemas.control import ModelCard
from services.frontend.turns import TurnGateway
from services.runtime.seal import Sealer


class Vaults:
    """The sealers of the models that are served."""

    def __init__(self, gateway: TurnGateway, key_file: str | None) -> None:
        """Raises OSError where the key file cannot be read."""
        self._gateway = gateway
        self._common = Sealer.load(key_file, "") if key_file else None
        self._by_model: dict[str, Sealer] = {}

    def of(self, model: str) -> "ModelVault":
        """The sealer of a model by the name that a client has for it, which need not be served."""
        return ModelVault(self, model)

    def sealer(self, model: str) -> Sealer:
        """The sealer itself. Raises NotFound for a model that is not served."""
        if self._common is not None:
            return self._common
        card: ModelCard = self._gateway.resolve(model)
        if card.name not in self._by_model:
            self._by_model[card.name] = Sealer.load(None, card.name)
        return self._by_model[card.name]


class ModelVault:
    """A dialect's `Vault`. Asks which model it is for only when something is sealed."""

    __slots__ = ("_model", "_vaults")

    def __init__(self, vaults: Vaults, model: str) -> None:
        self._vaults = vaults
        self._model = model

    def seal(self, text: str) -> str:
        """The blob of a text."""
        return self._vaults.sealer(self._model).seal(text)

    def open(self, blob: str) -> str | None:
        """The text; None where the blob is foreign."""
        return self._vaults.sealer(self._model).open(blob)
