"""The other stages of the pipeline, as a frontend reaches them over the bus."""

from typing import Any

from typing_extensions import override

from schemas.control import EngineControl, EngineState
from schemas.requests import TextReply
from services.frontend.gateway.engine_client import EngineClient
from services.frontend.gateway.gateway import BusGateway
from services.frontend.gateway.preprocessor_client import PreprocessorClient
from services.frontend.models.catalog import ModelCatalog, ModelProcesses
from services.frontend.peers import Peers
from services.frontend.turns.interfaces import Admitted, Pipeline
from services.runtime.config.frontend import FrontendConfig
from services.runtime.process import Process


class BusPipeline(Pipeline):
    """The pipeline of a frontend process."""

    def __init__(self, process: Process, config: FrontendConfig, peers: Peers) -> None:
        self._process = process
        self._catalog = ModelCatalog(
            process.registry,
            peers,
            default_model=config.default_model,
            accept_any_model=config.accept_any_model,
        )
        process.metrics.register(ModelProcesses(self._catalog))
        self._preprocessors = PreprocessorClient(process, config)
        self._gateway = BusGateway(process, config, peers, self._catalog, self._preprocessors)
        self._engines = EngineClient(process, config.engine_control_s)

    @property
    @override
    def gateway(self) -> BusGateway:
        return self._gateway

    @property
    @override
    def catalog(self) -> ModelCatalog:
        return self._catalog

    @override
    async def count(self, admitted: Admitted) -> int:
        return await self._preprocessors.count(admitted)

    @override
    async def tokenize(
        self, admitted: Admitted, text: str | None, add_special_tokens: bool
    ) -> TextReply:
        return await self._preprocessors.tokenize(admitted, text, add_special_tokens)

    @override
    async def detokenize(self, admitted: Admitted, token_ids: list[int]) -> TextReply:
        return await self._preprocessors.detokenize(admitted, token_ids)

    @override
    async def control(self, model: str, control: EngineControl) -> list[EngineState]:
        return await self._engines.control(model, control)

    @override
    def readiness(self) -> dict[str, Any]:
        """Returns the models that take turns, and every process and its load."""
        ready = self.catalog.ready_models()
        bus = not self._process.cut_off
        draining = self._process.draining
        return {
            "ready": bus and bool(ready) and not draining,
            "draining": draining,
            "bus": bus,
            "models": ready,
            "turns": self.gateway.running,
            "stages": self.catalog.stages(),
        }

    @override
    def live(self) -> bool:
        """Returns False once the process has failed."""
        return self._process.failure is None
