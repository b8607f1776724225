"""Decides what `turnwire up` starts, and with which flags, before anything runs.

A flag of `up` is passed to every stage that has it. The children read the environment and the
configuration file themselves. Defaults of `up` (demo model, sealing key, names and ports) become
flags of a child, unless the user has set another value.
"""

import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from services.cli.check.files import place_problem
from services.cli.check.model import PACKAGES
from services.cli.check.model_tables import ModelSettings, load_models, names_several
from services.cli.common import create_file, make_private, other_machines_hosts, reachable_host
from services.cli.instances import default_state_dir
from services.runtime.config.base import Config
from services.runtime.config.command_line import forwarded_arguments
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.loader import ConfigError, LoadedConfig, Sources
from services.runtime.config.service import BusConfig
from services.runtime.config.stages import WorkerConfig
from services.runtime.config.stores import BucketsConfig
from services.runtime.config.tables import STAGES, UpConfig
from services.runtime.request_headers import AllowedHosts, is_loopback
from services.worker.engines.registry import decodes_on_server

DEMO_MODEL = "turnwire-demo"


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
        """The names of its processes of a stage."""
        prefix = f"{stage}-{self.label}-" if self.label else f"{stage}-"
        return [f"{prefix}{number + 1}" for number in range(self.numbers[stage])]


class UpPlan(Struct, frozen=True):
    """All decisions made before the first process starts."""

    up: UpConfig
    buckets: BucketsConfig
    frontend: FrontendConfig
    models: Sequence[ModelPlan]
    """One or more."""
    demo: bool
    """No model was named: the demo model is built and served."""
    embedded_nats: bool
    """No server was named: one is started."""
    state_dir: Path
    frontend_flags: list[str]
    """Flags of the frontends."""
    bus_flags: list[str]
    """Flags of processes that only watch the bus."""

    @property
    def worker(self) -> WorkerConfig:
        """The worker of the first model, which the instructions show."""
        return self.models[0].worker

    @property
    def model(self) -> str:
        """The served name of the first model."""
        return self.models[0].name

    def url(self, port: int) -> str:
        """The base URL of a frontend, for clients on this machine."""
        return self._url(reachable_host(self.frontend.host), port)

    def other_urls(self, port: int) -> list[str]:
        """The base URLs of a frontend for clients on other machines, if it listens on all
        addresses."""
        host = self.frontend.host
        allowed = AllowedHosts.of(self.frontend.allowed_hosts, host, guarded=self._is_guarded)
        return [self._url(name, port) for name in other_machines_hosts(host, allowed)]

    @property
    def open_to_others(self) -> bool:
        """Whether frontends listen beyond this machine, and require neither key nor certificate."""
        return not self._is_guarded and not is_loopback(self.frontend.host)

    @property
    def _is_guarded(self) -> bool:
        """Whether frontends require a key or a certificate."""
        return bool(self.frontend.api_keys_file or self.frontend.tls_client_ca_file)

    def _url(self, host: str, port: int) -> str:
        scheme = "https" if self.frontend.tls_cert_file else "http"
        return f"{scheme}://{host}:{port}"


def make_plan(sources: Sources) -> UpPlan:
    """Checks the configuration of every stage, and decides what to start. Raises ConfigError with
    all problems."""
    tables: dict[str, type[Config]] = {**STAGES, "buckets": BucketsConfig, "up": UpConfig}
    loaded = sources.load_all(tables, {"model": None})
    up: UpConfig = loaded["up"].config
    demo = _serves_demo(sources, loaded)
    state_dir = _state_dir(up, sources.env)
    defaults = _stage_defaults(up, state_dir, demo=demo)

    frontend = sources.load(FrontendConfig, defaults)
    models = load_models(sources, loaded["up"], frontend, defaults)
    if demo:
        _check_demo_engine(models[0].worker.engine)
    _check_up_settings(loaded["up"], state_dir, frontend.config.port)

    return UpPlan(
        up=up,
        buckets=loaded["buckets"].config,
        frontend=frontend.config,
        models=[_plan_model(model, defaults) for model in models],
        demo=demo,
        embedded_nats=frontend.origins["nats_url"] == "default",
        state_dir=state_dir,
        frontend_flags=_flags(frontend, sources, defaults),
        bus_flags=forwarded_arguments(sources.flags, BusConfig),
    )


def _serves_demo(sources: Sources, loaded: Mapping[str, LoadedConfig[Any]]) -> bool:
    """Whether no model is named. Raises ConfigError if one is, and the demo is to have vision."""
    several = names_several(sources, loaded["up"])
    demo = loaded["worker"].origins["model"] == "default" and not several
    if loaded["up"].config.demo_vision and not demo:
        raise ConfigError(["--demo-vision is for the demo model, and another one is named"])
    return demo


def _state_dir(up: UpConfig, env: Mapping[str, str]) -> Path:
    if up.state_dir:
        return Path(up.state_dir).expanduser()
    return default_state_dir(env)


def _check_demo_engine(engine: str) -> None:
    """Raises ConfigError for an engine that needs weights."""
    if engine in PACKAGES or decodes_on_server(engine):
        raise ConfigError([f"--engine {engine} needs a --model: the demo model has no weights"])


def _plan_model(model: ModelSettings, defaults: Mapping[str, Any]) -> ModelPlan:
    stages = model.stages.items()
    return ModelPlan(
        label=model.label,
        worker=model.worker,
        numbers=_process_numbers(model.up, model.worker),
        flags={stage: _flags(loaded, model.sources, defaults) for stage, loaded in stages},
    )


def _process_numbers(up: UpConfig, worker: WorkerConfig) -> dict[str, int]:
    """The number of processes of each stage: one worker at least for each server."""
    workers = max(up.workers, len(worker.engine_urls))
    return {"preprocessor": up.preprocessors, "worker": workers, "parser": up.parsers}


def _stage_defaults(up: UpConfig, state_dir: Path, *, demo: bool) -> dict[str, Any]:
    """What `up` sets for the stages unless the user has set another value."""
    name = "demo-vision-model" if up.demo_vision else "demo-model"
    defaults = {
        "model": str(state_dir / name),
        "seal_key_file": str(state_dir / "seal.key"),
    }
    if up.frontends > 1:
        defaults["response_store"] = "shared"
    if demo:
        defaults["served_model_name"] = DEMO_MODEL
    return defaults


def _check_up_settings(loaded: LoadedConfig[Any], state_dir: Path, frontend_port: int) -> None:
    """Raises ConfigError for settings of `up` that cannot work here."""
    up: UpConfig = loaded.config
    origins = loaded.origins
    state_origin = origins["state_dir"]
    if state_origin == "default":
        state_origin = "--state-dir"
    _check_place(state_dir, state_origin, is_file=False)
    if up.ready_file:
        _check_place(Path(up.ready_file), origins["ready_file"], is_file=True)
    if up.metrics_port and up.metrics_port == frontend_port:
        problem = f"{up.metrics_port} is the frontend's port"
        raise ConfigError([f"Invalid value for {origins['metrics_port']}: {problem}"])


def _check_place(path: Path, origin: str, *, is_file: bool) -> None:
    """Raises ConfigError for a path that nothing can be written to."""
    problem = place_problem(path, is_file=is_file)
    if problem:
        raise ConfigError([f"Invalid value for {origin}: {problem}"])


def _flags(loaded: LoadedConfig[Any], sources: Sources, defaults: Mapping[str, Any]) -> list[str]:
    argv = [f"--config={sources.file}"] if sources.file else []
    argv += forwarded_arguments(sources.flags, type(loaded.config))
    for name, value in defaults.items():
        if loaded.origins.get(name) == "default":
            argv.append(f"--{name.replace('_', '-')}={value}")
    return [*argv, "--log-format=json"]


def prepare_state(plan: UpPlan) -> None:
    """Makes the files that the processes need: the demo model, and the key that seals reasoning.

    Raises OSError if the state directory cannot be written.
    """
    plan.state_dir.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        create_file(plan.state_dir / "seal.key", secrets.token_hex(32).encode() + b"\n")
    make_private(plan.state_dir / "seal.key")
    if plan.demo:
        _make_demo_model(plan.worker.model, ["--vision"] if plan.up.demo_vision else [])


def _make_demo_model(path: str, flags: Sequence[str]) -> None:
    """Makes the demo model, unless it exists. Uses another process: training a tokenizer leaves 110
    MB allocated."""
    command = [sys.executable, "-m", "services.cli.main", "demo-model", path, *flags]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise OSError(
            f"the demo model cannot be made: {process.stderr.strip().rpartition(chr(10))[2]}"
        )
