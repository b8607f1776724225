"""A signal ends a service at once, whatever it waits for: a model, the bus, or others after a first
signal."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from services.frontend import service as frontend
from services.parser import service as parser
from services.preprocessor import service as preprocessor
from services.preprocessor.model import ModelSetup
from services.runtime import nats_client
from services.runtime.config import (
    BusConfig,
    FrontendConfig,
    ParserConfig,
    PreprocessorConfig,
    WorkerConfig,
)
from services.tokenization.detokenizer import Vocabulary
from services.tokenization.tokenizer_files import load_backend
from services.worker import service as worker
from services.worker.engine import EngineInfo
from tests.kit.cancellation import cancel_at, cancel_everywhere
from tests.kit.nats import NatsServer
from tests.kit.waiting import LIMIT_S
from turnwire_tools.script.engine import ScriptEngine

WAIT_S = 600
"""What a service waits for takes this long …"""
ENDS_S = 20.0
"""… and its end this long at most, on a loaded machine: a second on an idle one."""
SIGNALS = [signal.SIGINT, signal.SIGTERM]
AWAITS = 24
"""The first heartbeats are among these."""
STAGES = ("frontend", "preprocessor", "worker", "parser")
STARTS: dict[str, Callable[[Path, BusConfig], Coroutine[Any, Any, None]]] = {
    "frontend": lambda _model, bus: frontend.run(FrontendConfig(bus=bus, port=0)),
    "preprocessor": lambda model, bus: preprocessor.run(
        PreprocessorConfig(model=str(model), bus=bus)
    ),
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


@dataclass
class Loaded:
    """What the services load of a model."""

    setup: ModelSetup
    vocabulary: Vocabulary
    engine: ScriptEngine
    info: EngineInfo


@pytest.fixture(scope="module")
def once(demo_dir: Path) -> Loaded:
    setup = ModelSetup.load(PreprocessorConfig(model=str(demo_dir)))
    vocabulary = Vocabulary(load_backend(str(demo_dir), trust_remote_code=False))
    engine = ScriptEngine(WorkerConfig(model=str(demo_dir)))
    return Loaded(setup, vocabulary, engine, engine._load())


@pytest.fixture
def loaded(once: Loaded, demo_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model, which the services of this process do not load again."""
    monkeypatch.setattr(ModelSetup, "load", lambda _config: once.setup)
    monkeypatch.setattr(parser, "Vocabulary", lambda _tokenizer: once.vocabulary)
    first = once.engine

    def load(engine: ScriptEngine) -> EngineInfo:
        engine._source, engine._vocabulary_size = first._source, first._vocabulary_size
        return once.info

    monkeypatch.setattr(ScriptEngine, "_load", load)
    return demo_dir


@pytest.fixture
def patient(silent: str, monkeypatch: pytest.MonkeyPatch) -> BusConfig:
    """The settings for a bus that never answers; no limit of time ends an attempt to connect."""
    monkeypatch.setattr(nats_client, "ATTEMPT_S", WAIT_S)
    return BusConfig(nats_url=silent, connect_timeout_s=WAIT_S)


@pytest.mark.parametrize("stage", STAGES)
async def test_start_ends_at_its_first_waits(stage: str, patient: BusConfig, loaded: Path) -> None:
    await cancel_at(lambda: STARTS[stage](loaded, patient), range(1, 5))


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
async def test_start_ends_at_each_of_its_waits(
    stage: str, patient: BusConfig, loaded: Path
) -> None:
    assert await cancel_everywhere(lambda: STARTS[stage](loaded, patient)) > 3


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stage", STAGES)
async def test_service_ends_at_its_first_waits(
    stage: str, step: int, nats: NatsServer, loaded: Path
) -> None:
    config = BusConfig(nats_url=nats.url, beat_interval_s=0.02)
    await cancel_at(lambda: STARTS[stage](loaded, config), range(1, AWAITS + 1, step))


PROGRAM = """
import asyncio, sys, time
from services.{stage} import service
from services.cli.main import main

def load(*_):
    print("loads", flush=True)
    time.sleep(600)

async def drain(_):
    print("drains", flush=True)
    await asyncio.to_thread(time.sleep, 600)

{patch}
sys.exit(main(["serve", "{stage}", *sys.argv[1:]]))
"""
LOADS = {
    "preprocessor": "service.ModelSetup.load = load",
    "worker": "from turnwire_tools.script.engine import ScriptEngine; ScriptEngine._load = load",
    "parser": "service.Vocabulary = load",
}
"""Code that makes a service load for ten minutes."""


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a service in a process of its own. `patch`: code that runs before it, with the module
    as `service`."""
    processes: list[subprocess.Popen[str]] = []

    def started(stage: str, url: str, model: Path, patch: str = "") -> subprocess.Popen[str]:
        flags = ["--port=0"] if stage == "frontend" else [f"--model={model}"]
        waits = [f"--nats-url={url}", f"--connect-timeout-s={WAIT_S}", f"--drain-s={WAIT_S}"]
        command = [sys.executable, "-c", PROGRAM.format(stage=stage, patch=patch), *waits, *flags]
        processes.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
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


def ends(process: subprocess.Popen[str], signum: signal.Signals, limit_s: float) -> None:
    """Sends a signal to a process, which must end within a limit."""
    since = time.monotonic()
    process.send_signal(signum)
    process.communicate(timeout=LIMIT_S)
    assert time.monotonic() - since < limit_s
    assert process.returncode != 0


@pytest.mark.parametrize(
    ("waits", "loads", "signals", "limit_s"),
    [
        (("frontend",), ("worker",), SIGNALS, ENDS_S),
        *(
            pytest.param(STAGES, tuple(LOADS), [signum], 1.0, marks=pytest.mark.slow)
            for signum in SIGNALS
        ),
    ],
    ids=["both", "SIGINT", "SIGTERM"],
)
def test_signal_ends_a_process_that_waits_for_its_bus_or_its_model(
    waits: tuple[str, ...],
    loads: tuple[str, ...],
    signals: list[signal.Signals],
    limit_s: float,
    silent: str,
    start: Start,
    demo_dir: Path,
) -> None:
    """`waits`: stages whose bus never answers; `loads`: stages whose model takes ten minutes."""
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in waits]
        waiting = [
            start(stage, url_of(server), demo_dir)
            for stage, server in zip(waits, servers, strict=True)
        ]
        loading = [start(stage, silent, demo_dir, LOADS[stage]) for stage in loads]
        for server in servers:
            server.settimeout(LIMIT_S)
        connections = [server.accept() for server in servers]
        for process in loading:
            reports(process, "loads")
        for process, signum in zip([*waiting, *loading], cycle(signals), strict=False):
            ends(process, signum, limit_s)
        assert len(connections) == len(waits)


@pytest.mark.parametrize(
    ("first", "second", "limit_s"),
    [
        (signal.SIGTERM, signal.SIGINT, ENDS_S),
        *(pytest.param(signum, signum, 1.0, marks=pytest.mark.slow) for signum in SIGNALS),
    ],
)
def test_second_signal_ends_a_process_that_drains_while_the_bus_hangs(
    first: signal.Signals,
    second: signal.Signals,
    limit_s: float,
    own_nats: NatsServer,
    start: Start,
    demo_dir: Path,
) -> None:
    process = start("parser", own_nats.url, demo_dir, "service.Parser.drain = drain")
    reports(process, "process.ready")
    process.send_signal(first)
    reports(process, "drains")
    own_nats.pause()
    ends(process, second, limit_s)
