"""Reads the models of `--models FILE`: a table for each, with its settings.

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

from schemas.control import INNER_STAGES
from services.cli.check.settings import check_settings
from services.runtime.config.base import Config
from services.runtime.config.loader import ConfigError, LoadedConfig, Sources
from services.runtime.config.names import nearest, setting_names
from services.runtime.config.service import BusConfig
from services.runtime.config.stages import WorkerConfig
from services.runtime.config.tables import STAGES, UpConfig

_CONFIGS: Mapping[str, type[Config]] = {stage: STAGES[stage] for stage in INNER_STAGES}
NUMBERS = ("preprocessors", "workers", "parsers")
_OF_ALL = {"id", "log_format", "log_level", "metrics_host", "metrics_port", "seal_key_file"}
"""Settings of these stages that are the same for all models."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.]+")


class ModelSettings(Struct, frozen=True):
    """The settings of the processes of one model."""

    label: str
    """Part of the names of its processes; "" for the only model."""
    sources: Sources
    """Where they come from, a table first."""
    stages: Mapping[str, LoadedConfig[Any]]
    up: UpConfig
    """The numbers of its processes."""

    @property
    def worker(self) -> WorkerConfig:
        """The settings of its workers."""
        config: WorkerConfig = self.stages["worker"].config
        return config


def names_several(sources: Sources, up: LoadedConfig[Any]) -> bool:
    """Whether the models are those of `--models`. A flag `--model` takes precedence over a file
    that a variable or the configuration file names.

    Raises ConfigError for both flags, and for a file without a model.
    """
    place = up.origins["models"]
    if "model" in sources.flags:
        if "models" in sources.flags:
            raise ConfigError([f"{place}: --model is for one model"])
        return False
    if place != "default" and not up.config.models:
        raise ConfigError([f"{place} has no table of a model"])
    return bool(up.config.models)


def load_models(
    sources: Sources,
    up: LoadedConfig[Any],
    frontend: LoadedConfig[Any],
    defaults: Mapping[str, Any],
) -> list[ModelSettings]:
    """Loads and checks the settings of each model's processes, and of the frontends. Raises
    ConfigError with the problems of all models, each once."""
    tables: Iterator[_Table] = iter([_Table("", sources)])
    if names_several(sources, up):
        tables = _read_tables(sources, up)
    models: list[ModelSettings] = []
    problems: dict[str, None] = {}
    for table in tables:
        problems |= dict.fromkeys(table.mistakes)
        try:
            stages = table.sources.load_all(_CONFIGS, defaults)
            check_settings([frontend, *stages.values()])
            numbers = table.sources.load(UpConfig).config
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
        else:
            models.append(ModelSettings(table.label, table.sources, stages, numbers))
    names = [model.worker.model_name for model in models]
    labels = {model.label for model in models}
    if min(len(set(names)), len(labels)) < len(names):
        problems[f"models have nearly the same name: {', '.join(names)}"] = None
    if problems:
        raise ConfigError(list(problems))
    return models


class _Table(Struct, frozen=True):
    """A model as its table has it."""

    label: str
    sources: Sources
    """All sources, with the known settings of the table first."""
    mistakes: list[str] = []
    """Lines for what is wrong with the table itself."""


def _read_tables(sources: Sources, up: LoadedConfig[Any]) -> Iterator[_Table]:
    place = up.origins["models"]
    known = set(NUMBERS).union(*map(setting_names, _CONFIGS.values()))
    known -= _OF_ALL | setting_names(BusConfig)
    for name, table in up.config.models.items():
        flags = dict(sources.flags)
        settings = table if isinstance(table, dict) else {}
        for setting, value in {"served_model_name": name, **settings}.items():
            if setting in known:
                flags[setting] = [Token(keyword=f"{place} [{name}] {setting}", value=_text(value))]
        mistakes = [*_mistakes(f"{place} [{name}]", table, known)]
        yield _Table(_UNSAFE.sub("_", name), Sources(flags, sources.env, sources.file), mistakes)


def _mistakes(place: str, table: Any, known: set[str]) -> Iterator[str]:
    if not isinstance(table, dict):
        yield f"{place} is not a table of settings"
        return
    if not table.get("model"):
        yield f"{place}: model is required, a directory or a hub id"
    for setting in table:
        if setting not in known:
            yield f'{place}: no setting "{setting}" of a model{nearest(setting, known)}'


def _text(value: Any) -> str:
    """A value as a flag has it."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return str(value)
