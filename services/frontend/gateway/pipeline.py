"""The other stages of the pipeline, as a frontend reaches them over the bus."""

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from schemas import subjects
from schemas.notices import FrontendNotice
from services.frontend.gateway.catalog import ModelCatalog
from services.frontend.gateway.engine_client import EngineClient
from services.frontend.gateway.gateway import BusGateway
from services.frontend.gateway.preprocessor_client import PreprocessorClient
from services.runtime.config import FrontendConfig
from services.runtime.observability.metrics import register
from services.runtime.process import Process


class BusPipeline:
    """The `Pipeline` of a frontend process."""

    def __init__(self, process: Process, config: FrontendConfig) -> None:
        self._process = process
        self.catalog = ModelCatalog(
            process.registry,
            default_model=config.default_model,
            accept_any_model=config.accept_any_model,
            publish=self.publish_notice,
        )
        register(process.metrics, ModelProcesses(self.catalog))
        self.texts = PreprocessorClient(process, config)
        self.gateway = BusGateway(process, config, self.catalog, self.texts)
        self.engines = EngineClient(process, config.engine_control_s)

    def publish_notice(self, notice: FrontendNotice) -> None:
        """Sends a notice to the other frontends."""
        self._process.publish(subjects.frontends(), notice)

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

    def live(self) -> bool:
        """Returns False once the process has failed."""
        return self._process.failure is None


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
