"""Configuration: the settings of each service, where their values come from, and the command line."""

from services.runtime.config.settings import (
    MIB,
    STAGES,
    TABLES,
    BusConfig,
    Config,
    FrontendConfig,
    ParserConfig,
    PreprocessorConfig,
    ServiceConfig,
    StageConfig,
    UpConfig,
    WorkerConfig,
    read_secret,
)

__all__ = [
    "MIB",
    "STAGES",
    "TABLES",
    "BusConfig",
    "Config",
    "FrontendConfig",
    "ParserConfig",
    "PreprocessorConfig",
    "ServiceConfig",
    "StageConfig",
    "UpConfig",
    "WorkerConfig",
    "read_secret",
]
