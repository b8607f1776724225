"""Decides what `turnwire up` starts: the command line of every child, before anything runs.

A flag of `up` is passed to every stage that has it. The children read the environment and the configuration file
themselves. Defaults of `up` (demo model, sealing key, names and ports) become flags of a child, unless the user has set
another value.
"""

import errno
import importlib.util
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from services.cli.common import create_file, reachable_host
from services.cli.instances import default_state_dir
from services.cli.up.supervisor import Spec, quiet_variables
from services.runtime.config import STAGES, BucketsConfig, Config, FrontendConfig, UpConfig, WorkerConfig
from services.runtime.config.command_line import forwarded
from services.runtime.config.loader import ConfigError, LoadedConfig, Sources
from services.tokenization.model_files import find_file, local_folder

DEMO_MODEL = "turnwire-demo"
_NEEDS = {
    "transformers": ("torch", "torch"),
    "trtllm": ("tensorrt_llm", "trtllm"),
    "vllm": ("vllm", "vllm"),
    "tracing": ("opentelemetry.exporter.otlp.proto.http", "otel"),
}
"""The package that an engine or tracing requires, and the extra that installs it."""
START_ORDER = ("preprocessor", "worker", "frontend", "parser")
"""The slowest to start first."""


class Plan(Struct, frozen=True):
    """All decisions made before the first process starts."""

    up: UpConfig
    buckets: BucketsConfig
    frontend: FrontendConfig
    worker: WorkerConfig
    model: str
    """The served name."""
    demo: bool
    """No model was named: the demo model is built and served."""
    embedded_nats: bool
    """No server was named: one is started."""
    state_dir: Path
    flags: dict[str, list[str]]
    """Flags of the processes of each stage."""

    def url(self, port: int) -> str:
        """Returns the base URL of a frontend, for clients on this machine."""
        scheme = "https" if self.frontend.tls_cert_file else "http"
        return f"{scheme}://{reachable_host(self.frontend.host)}:{port}"


def make_plan(sources: Sources) -> Plan:
    """Checks the configuration of every stage, and decides what to start. Raises ConfigError with all problems."""
    tables: dict[str, type[Config]] = {**STAGES, "buckets": BucketsConfig, "up": UpConfig}
    loaded = sources.load_all(tables, {"model": None})
    up: UpConfig = loaded["up"].config
    demo = loaded["worker"].origins["model"] == "default"
    state_dir = Path(up.state_dir).expanduser() if up.state_dir else default_state_dir(sources.env)
    defaults: dict[str, Any] = {"model": str(state_dir / "demo-model"), "seal_key_file": str(state_dir / "seal.key")}
    if up.frontends > 1:
        defaults["response_store"] = "shared"
    if demo:
        defaults["served_model_name"] = DEMO_MODEL
    stages = sources.load_all(STAGES, defaults)
    worker: WorkerConfig = stages["worker"].config
    if demo and worker.engine in _NEEDS:
        raise ConfigError([f"--engine {worker.engine} needs a --model: the demo model has no weights"])
    if not demo and (problem := model_problem(worker.model)):
        raise ConfigError([f"model: {problem}"])
    if problem := engine_problem(worker.engine):
        raise ConfigError([f"engine: {problem}"])
    if any(loaded.config.tracing for loaded in stages.values()) and (problem := engine_problem("tracing")):
        raise ConfigError([problem])
    return Plan(
        up=up,
        buckets=loaded["buckets"].config,
        frontend=stages["frontend"].config,
        worker=worker,
        model=worker.model_name,
        demo=demo,
        embedded_nats=stages["frontend"].origins["nats_url"] == "default",
        state_dir=state_dir,
        flags={stage: _flags(stages[stage], sources, defaults) for stage in STAGES},
    )


def engine_problem(engine: str) -> str | None:
    """Returns which package for an engine, or for tracing, is not installed; None if all are."""
    package, extra = _NEEDS.get(engine, ("", ""))
    with suppress(ImportError):  # a parent package is missing
        if not package or importlib.util.find_spec(package) is not None:
            return None
    install = f"{sys.executable} -m pip install -e '.[{extra}]'"
    return f"{engine} needs {package}, which is not installed; in a clone: {install}"


def model_problem(model: str) -> str | None:
    """Returns why the model cannot be loaded from local files; None if it can, or if it may be on the hub."""
    if Path(model).expanduser().is_file():
        return f"{model} is a file; a model is a directory or a hub id"
    try:
        folder = local_folder(model)
    except OSError as error:
        return str(error)
    return None if folder is None or (folder / "config.json").is_file() else f"{model} has no config.json"


def require_hub_model(model: str) -> None:
    """Raises OSError if a model is neither local nor on the hub: one error instead of one from each process."""
    try:
        if local_folder(model) is not None or find_file(model, "config.json") is not None:
            return
    except ValueError:  # a name that no model of the hub can have
        pass
    raise FileNotFoundError(f"there is no directory {model} here, and the hub has no such model or is out of reach")


def _flags(loaded: LoadedConfig[Any], sources: Sources, defaults: Mapping[str, Any]) -> list[str]:
    argv = [f"--config={sources.file}"] if sources.file else []
    argv += forwarded(sources.flags, type(loaded.config))
    for name, value in defaults.items():
        if loaded.origins.get(name) == "default":
            argv.append(f"--{name.replace('_', '-')}={value}")
    return [*argv, "--log-format=json"]


def prepare_state(plan: Plan) -> None:
    """Makes the files that the processes need: the demo model, and the key that seals reasoning.

    Raises OSError if the state directory cannot be written.
    """
    plan.state_dir.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        create_file(plan.state_dir / "seal.key", secrets.token_hex(32).encode() + b"\n")
    if plan.demo:
        _make_demo_model(plan.state_dir / "demo-model")


def _make_demo_model(path: Path) -> None:
    """Makes the demo model, unless it exists. Uses another process: training a tokenizer leaves 110 MB allocated."""
    command = [sys.executable, "-m", "services.cli.main", "demo-model", str(path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise OSError(f"the demo model cannot be made: {process.stderr.strip().rpartition(chr(10))[2]}")


def make_specs(plan: Plan, nats_url: str | None, ports: Sequence[int], env: Mapping[str, str]) -> list[Spec]:
    """Returns the specs of all service processes, in the order of their start."""
    bus = [f"--nats-url={nats_url}"] if nats_url else []
    variables = {} if plan.worker.engine in ("trtllm", "vllm") else quiet_variables(env)
    processes = []
    for stage in START_ORDER:
        for number in range(getattr(plan.up, stage + "s")):
            name = f"{stage}-{number + 1}"
            own = [f"--id={name}", *([f"--port={ports[number]}"] if stage == "frontend" else [])]
            command = [sys.executable, "-m", f"services.{stage}", *plan.flags[stage], *bus, *own]
            processes.append(Spec(name, command, variables))
    return processes


def reserve_ports(host: str, port: int, count: int) -> list[int]:
    """Returns `port` unless it is 0, and free ports for the others. Only servers that name a port can listen on it.

    Raises OSError, with the port and a remedy, if the port is in use.
    """
    ports = []
    for number in [port, *[0] * (count - 1)]:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, number))
            except OSError as error:
                hint = "; choose another with --port, or --port 0 for a free one" if number else ""
                reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
                raise OSError(f"port {number} on {host} {reason}{hint}") from error
            if not number:
                _reserve(listener)
            ports.append(int(listener.getsockname()[1]))
    return ports


def _reserve(listener: socket.socket) -> None:
    """Leaves a connection in TIME_WAIT on the port. For a minute, the system then assigns it to no socket that binds to
    port 0, so it is still free when its server starts."""
    listener.listen()
    with socket.create_connection(listener.getsockname()[:2]):
        listener.accept()[0].close()  # the end that closes first has the TIME_WAIT
