"""Decides what `turnwire up` starts for each model."""

from collections.abc import Mapping

from msgspec import Struct

from services.runtime.config.stages import WorkerConfig
from services.runtime.config.tables import UpConfig


class ModelPlan(Struct, frozen=True):
    """The processes to start for one model."""

    label: str
    """Part of the names of its processes; "" for the only model."""
    worker: WorkerConfig
    numbers: Mapping[str, int]
    """The number of processes of each stage."""
    flags: Mapping[str, list[str]]
    """Flags of the processes of each stage."""

    @property
    def name(self) -> str:
        """The served name."""
        return self.worker.model_name

    def process_names(self, stage: str) -> list[str]:
        """Returns the names of its processes of a stage."""
        prefix = f"{stage}-{self.label}-" if self.label else f"{stage}-"
        return [f"{prefix}{number + 1}" for number in range(self.numbers[stage])]


def numbers_of(up: UpConfig, worker: WorkerConfig) -> dict[str, int]:
    """Returns the number of processes of each stage: one worker at least for each server."""
    workers = max(up.workers, len(worker.engine_urls))
    return {"preprocessor": up.preprocessors, "worker": workers, "parser": up.parsers}
