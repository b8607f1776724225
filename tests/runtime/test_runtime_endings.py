"""A signal ends a service within a second, whatever it waits for: a model, the bus, or others after a first signal."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from services.frontend import service as frontend
from services.parser import service as parser
from services.preprocessor import service as preprocessor
from services.preprocessor.model import ModelSetup
from services.runtime import nats_client
from services.runtime.config import BusConfig, FrontendConfig, ParserConfig, PreprocessorConfig, WorkerConfig
from services.worker import service as worker
from tests.cancellation import cancel_everywhere
from tests.conftest import LIMIT_S, NatsServer

ENDS_S = 1.0
MOST = 24
"""The first heartbeats are among so many waits."""
STAGES = ("frontend", "preprocessor", "worker", "parser")
STARTS: dict[str, Callable[[Path, BusConfig], Coroutine[Any, Any, None]]] = {
    "frontend": lambda _model, bus: frontend.run(FrontendConfig(bus=bus, port=0)),
    "preprocessor": lambda model, bus: preprocessor.run(PreprocessorConfig(model=str(model), bus=bus)),
    "worker": lambda model, bus: worker.run(WorkerConfig(model=str(model), bus=bus)),
    "parser": lambda model, bus: parser.run(ParserConfig(model=str(model), bus=bus)),
}


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield url_of(server)


def url_of(server: socket.socket) -> str:
    return f"nats://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def loaded(demo_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model, which preprocessors load only once: that takes half a second."""
    setup = ModelSetup.load(PreprocessorConfig(model=str(demo_dir)))
    monkeypatch.setattr(ModelSetup, "load", lambda _config: setup)
    return demo_dir


@pytest.mark.parametrize("stage", STAGES)
async def test_start_ends_at_each_of_its_waits(
    stage: str, silent: str, loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_client, "ATTEMPT_S", 600)
    config = BusConfig(nats_url=silent, connect_timeout_s=600.0)
    await cancel_everywhere(lambda: STARTS[stage](loaded, config), least=3)


@pytest.mark.parametrize("stage", STAGES)
async def test_service_ends_at_each_of_its_first_waits(stage: str, nats: NatsServer, loaded: Path) -> None:
    config = BusConfig(nats_url=nats.url, beat_interval_s=0.02)
    await cancel_everywhere(lambda: STARTS[stage](loaded, config), least=MOST, most=MOST)


PROGRAM = """
import asyncio, sys, time
from services.{stage} import service
from services.{stage}.__main__ import main

def load(*_):
    print("loads", flush=True)
    time.sleep(60)

async def drain(_):
    print("drains", flush=True)
    await asyncio.to_thread(time.sleep, 60)

{patch}
sys.exit(main())
"""
LOADS = {
    "preprocessor": "service.ModelSetup.load = load",
    "worker": "from turnwire_tools.script.engine import ScriptEngine; ScriptEngine._load = load",
    "parser": "service.Vocabulary = load",
}
"""What makes a service load for a minute."""


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a service in a process of its own. `patch`: code that runs before it, with the module as `service`."""
    processes: list[subprocess.Popen[str]] = []

    def started(stage: str, url: str, model: Path, patch: str = "") -> subprocess.Popen[str]:
        flags = ["--port=0"] if stage == "frontend" else [f"--model={model}"]
        command = [sys.executable, "-c", PROGRAM.format(stage=stage, patch=patch), f"--nats-url={url}", *flags]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return processes[-1]

    yield started
    for process in processes:
        process.kill()
        process.communicate()


def reports(process: subprocess.Popen[str], text: str) -> None:
    """Waits for a line of the process with this text."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"ended with status {process.wait()}")


def end_times(processes: list[subprocess.Popen[str]], signum: signal.Signals) -> list[float]:
    """Sends a signal to processes, one after the other, and returns after how many seconds each has ended."""
    times = []
    for process in processes:
        since = time.monotonic()
        process.send_signal(signum)
        process.communicate(timeout=LIMIT_S)
        times.append(time.monotonic() - since)
        assert process.returncode != 0
    return times


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_process_that_waits_for_its_bus_or_its_model(
    signum: signal.Signals, silent: str, start: Start, demo_dir: Path
) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in STAGES]
        waiting = [start(*named, demo_dir) for named in zip(STAGES, map(url_of, servers), strict=True)]
        loading = [start(stage, silent, demo_dir, patch) for stage, patch in LOADS.items()]
        for server in servers:
            server.settimeout(LIMIT_S)
        connections = [server.accept() for server in servers]
        for process in loading:
            reports(process, "loads")
        assert max(end_times([*waiting, *loading], signum)) < ENDS_S
        assert len(connections) == len(STAGES)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_ends_a_process_that_drains_while_the_bus_hangs(
    signum: signal.Signals, own_nats: NatsServer, start: Start, demo_dir: Path
) -> None:
    process = start("parser", own_nats.url, demo_dir, "service.Parser.drain = drain")
    reports(process, "process.ready")
    process.send_signal(signum)
    reports(process, "drains")
    own_nats.pause()
    assert end_times([process], signum)[0] < ENDS_S
