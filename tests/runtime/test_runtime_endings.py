"""A signal ends a service at once, whatever it waits for: a model, the bus, or others after a first
signal."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from services.frontend import service as frontend
from services.parser import service as parser
from services.preprocessor import service as preprocessor
from services.preprocessor.model.model_setup import ModelSetup
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.service import BusConfig
from services.runtime.config.stages import ParserConfig, PreprocessorConfig, WorkerConfig
from services.tokenization.detokenizer import Vocabulary
from services.tokenization.tokenizer_files import load_backend
from services.worker import service as worker
from services.worker.engine import EngineInfo
from tests.kit.nats import NatsServer
from tests.kit.waiting import LIMIT_S
from tests.runtime.cancellation import cancel_at
from turnwire_tools.script.engine import ScriptEngine

WAIT_S = 600
ENDS_S = 20.0
"""A process ends within this time on a loaded machine, and in a second on an idle one."""
STARTS: dict[str, Callable[[Path, BusConfig], Coroutine[Any, Any, None]]] = {
    "frontend": lambda _model, bus: frontend.run(FrontendConfig(bus=bus, port=0)),
    "preprocessor": lambda model, bus: preprocessor.run(
        PreprocessorConfig(model=str(model), bus=bus)
    ),
    "worker": lambda model, bus: worker.run(WorkerConfig(model=str(model), bus=bus)),
    "parser": lambda model, bus: parser.run(ParserConfig(model=str(model), bus=bus)),
}


@pytest.fixture(scope="module")
def loaded(demo_dir: Path) -> Iterator[Path]:
    """The model, which the services of this process do not load again."""
    setup = ModelSetup.load(PreprocessorConfig(model=str(demo_dir)))
    vocabulary = Vocabulary(load_backend(str(demo_dir), trust_remote_code=False))
    first = ScriptEngine(WorkerConfig(model=str(demo_dir)))
    info = first._load()

    def load(engine: ScriptEngine) -> EngineInfo:
        engine._source, engine._vocabulary_size = first._source, first._vocabulary_size
        return info

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelSetup, "load", lambda _config: setup)
        patch.setattr(parser, "Vocabulary", lambda _tokenizer: vocabulary)
        patch.setattr(ScriptEngine, "_load", load)
        yield demo_dir


@pytest.mark.parametrize("stage", STARTS)
async def test_service_ends_at_its_first_waits(stage: str, nats: NatsServer, loaded: Path) -> None:
    config = BusConfig(nats_url=nats.url, beat_interval_s=0.02)
    await cancel_at(lambda: STARTS[stage](loaded, config), (1, 7, 13, 19))


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
LOADS = "from turnwire_tools.script.engine import ScriptEngine; ScriptEngine._load = load"


@contextmanager
def running(stage: str, url: str, model: Path, patch: str) -> Iterator[subprocess.Popen[str]]:
    """A service in a process of its own. `patch`: code that runs before it, with the module as
    `service`."""
    waits = [f"--nats-url={url}", f"--connect-timeout-s={WAIT_S}", f"--drain-s={WAIT_S}"]
    program = PROGRAM.format(stage=stage, patch=patch)
    process = subprocess.Popen(
        [sys.executable, "-c", program, *waits, f"--model={model}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def reports(process: subprocess.Popen[str], text: str) -> None:
    """Waits for a line of the process with this text."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"ended with status {process.wait()}")


def ends(process: subprocess.Popen[str], signum: signal.Signals) -> None:
    """Sends a signal to a process, which must end soon."""
    since = time.monotonic()
    process.send_signal(signum)
    process.communicate(timeout=LIMIT_S)
    assert time.monotonic() - since < ENDS_S
    assert process.returncode != 0


def test_signal_ends_a_process_that_loads_its_model(demo_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        with running("worker", url, demo_dir, LOADS) as process:
            reports(process, "loads")
            ends(process, signal.SIGTERM)


def test_second_signal_ends_a_process_that_drains_while_the_bus_hangs(
    own_nats: NatsServer, demo_dir: Path
) -> None:
    with running("parser", own_nats.url, demo_dir, "service.Parser.drain = drain") as process:
        reports(process, "process.ready")
        process.send_signal(signal.SIGTERM)
        reports(process, "drains")
        own_nats.pause()
        ends(process, signal.SIGINT)
