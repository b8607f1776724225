"""Reads the models of `turnwire up --models FILE`: a table for each, with its settings.

    [coder]                      # the name for clients, and of the deployment on the bus
    model = "acme/coder"
    aliases = ["best"]
    workers = 2

    [small]
    model = "acme/small"
    engine = "transformers"

A table takes every setting of a preprocessor, a worker and a parser, and their numbers. It takes
precedence over flags, variables and the configuration file, which hold for all models.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from cyclopts import Token
from msgspec import Struct

from services.runtime.config.base import Config
from services.runtime.config.loader import ConfigError, LoadedConfig, Sources
from services.runtime.config.names import nearest, setting_names
from services.runtime.config.service import BusConfig
from services.runtime.config.stages import ParserConfig, PreprocessorConfig, WorkerConfig
from services.runtime.config.tables import UpConfig

INNER_STAGES: Mapping[str, type[Config]] = {
    "preprocessor": PreprocessorConfig,
    "worker": WorkerConfig,
    "parser": ParserConfig,
}
NUMBERS = ("preprocessors", "workers", "parsers")
_OF_ALL = {"id", "log_format", "log_level", "metrics_host", "metrics_port", "seal_key_file"}
"""Settings of these stages that are the same for all models."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.]+")


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


def model_sources(sources: Sources, loaded: LoadedConfig[Any]) -> Iterator[tuple[str, Sources]]:
    """Yields the label of each model of `--models`, and the sources with its settings first.

    `loaded`: the configuration of `up`. Raises ConfigError with the problems of a table.
    """
    place = loaded.origins["models"]
    if "model" in sources.flags:
        raise ConfigError([f"{place}: --model is for one model"])
    for name, table in loaded.config.models.items():
        problems = [*_problems(f"{place} [{name}]", table)]
        if problems:
            raise ConfigError(problems)
        flags = dict(sources.flags)
        for setting, value in {"served_model_name": name, **table}.items():
            flags[setting] = [Token(keyword=f"{place} [{name}] {setting}", value=_text(value))]
        yield _UNSAFE.sub("_", name), Sources(flags, sources.env, sources.file)


def _problems(place: str, table: Any) -> Iterator[str]:
    if not isinstance(table, dict):
        yield f"{place} is not a table of settings"
        return
    if not table.get("model"):
        yield f"{place}: model is required, a directory or a hub id"
    known = set(NUMBERS).union(*map(setting_names, INNER_STAGES.values()))
    known -= _OF_ALL | setting_names(BusConfig)
    for setting in table:
        if setting not in known:
            yield f'{place}: no setting "{setting}" of a model{nearest(setting, known)}'


def _text(value: Any) -> str:
    """Returns a value as a flag has it."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return str(value)
