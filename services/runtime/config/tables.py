"""The tables of a configuration file with the class of each, and the settings of `turnwire up`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.runtime.config.base import Config, Port, Processes, Table
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.service import BusConfig, ServiceConfig
from services.runtime.config.stages import ParserConfig, PreprocessorConfig, WorkerConfig
from services.runtime.config.stores import BucketsConfig


@dataclass(frozen=True, kw_only=True)
class UpConfig(Config):
    """The processes that `turnwire up` starts on this machine."""

    frontends: Processes = 1
    """Number of frontends; the second and later ones listen on free ports."""
    preprocessors: Processes = 1
    """Number of preprocessors."""
    workers: Processes = 1
    """Number of workers; each loads the model."""
    parsers: Processes = 1
    """Number of parsers."""
    demo_vision: bool = False
    """Let the demo model get images, as a model with vision does; it calls them `image`."""
    models: Table = field(default_factory=dict)
    """File with several models (docs/several-models.md)."""
    state_dir: str | None = None
    """Directory for the demo model and the sealing key; default: `turnwire` in the user's state
    directory."""
    metrics_host: str = "127.0.0.1"
    """Address for the metrics of all processes."""
    metrics_port: Port | None = None
    """Port for the metrics of all processes; 0: a free one; default: they are not served."""
    inspect: bool = False
    """Serve the inspector too, a page that shows turns and sessions (`turnwire inspect`)."""
    inspect_port: Port = 8090
    """Port of the inspector on this machine; 0: a free one."""
    ready_file: str | None = None
    """File to write when requests can be served: a JSON object with `url` and more."""


STAGES: Mapping[str, type[ServiceConfig]] = {
    "frontend": FrontendConfig,
    "preprocessor": PreprocessorConfig,
    "worker": WorkerConfig,
    "parser": ParserConfig,
}
TABLES: Mapping[str, type[Config]] = {
    **STAGES,
    "bus": BusConfig,
    "buckets": BucketsConfig,
    "up": UpConfig,
}
"""The tables of a configuration file."""
