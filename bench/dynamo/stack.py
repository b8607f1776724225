"""Starts Dynamo's frontend and the scripted worker for one run, on free ports of the loopback, and
ends them."""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from msgspec import Struct

from bench.dynamo import MODEL
from bench.stack import LOG_BYTES, SCRIPTS, StackFailed, end_process, free_port

START_S = 120.0
POLL_S = 0.05
ASK_S = 5.0
ROOT = Path(__file__).parents[2]
FRONTEND = (
    "--discovery-backend=file",
    "--request-plane=tcp",
    "--event-plane=zmq",
    "--enable-anthropic-api",
    "--strip-anthropic-preamble",
    "--enable-streaming-tool-dispatch",
)


class DynamoStack(Struct, frozen=True):
    """A running stack."""

    url: str
    model: str
    pids: Mapping[str, int]
    marks: Path
    start_s: float
    """From the first command to the first request that can be served."""


@asynccontextmanager
async def dynamo_stack(
    python: Path,
    model: Path,
    flags: Sequence[str] = (),
    *,
    mock_engine: bool = False,
    engine_flags: Sequence[str] = (),
) -> AsyncIterator[DynamoStack]:
    """Starts both, with `flags` for the frontend, and ends them. `model`: the directory that both
    read.

    `mock_engine`: Dynamo's own engine without a model instead of the worker, with `engine_flags`.
    It emits as many random tokens as a request allows. Raises StackFailed.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="turnwire-dynamo-") as name:
        directory = Path(name)
        marks = directory / "marks"
        marks.touch()
        environment = _environment(directory)
        module = (str(python), "-m")
        commands = {
            "frontend": (
                *module,
                "dynamo.frontend",
                "--http-host=127.0.0.1",
                f"--http-port={port}",
                *FRONTEND,
                *flags,
            ),
            "worker": (
                *module,
                *(
                    (*_mock_engine(model), *engine_flags)
                    if mock_engine
                    else _scripted(model, marks)
                ),
            ),
        }
        started = time.monotonic()
        running: dict[str, asyncio.subprocess.Process] = {}
        try:
            for stage, command in commands.items():
                running[stage] = await _start(command, environment, directory / f"{stage}.log")
            await _ready(url, running, directory)
            took = round(time.monotonic() - started, 3)
            yield DynamoStack(
                url, MODEL, {stage: one.pid for stage, one in running.items()}, marks, took
            )
        finally:
            for process in reversed(running.values()):
                await end_process(process)


def _scripted(model: Path, marks: Path) -> Sequence[str]:
    named = (f"--model={model}", f"--name={MODEL}")
    return ("bench.dynamo.worker", *named, f"--scripts={SCRIPTS}", f"--marks={marks}")


def _mock_engine(model: Path) -> Sequence[str]:
    """Returns the command: no pauses, and slots for every stream of a run."""
    named = (f"--model-path={model}", f"--model-name={MODEL}")
    room = (
        "--max-num-seqs=2048",
        "--max-num-batched-tokens=262144",
        "--num-gpu-blocks-override=200000",
    )
    return ("dynamo.mocker", *named, "--speedup-ratio=100000", *room)


def _environment(directory: Path) -> dict[str, str]:
    """Returns variables that keep everything on the loopback and in `directory`, without a model
    hub."""
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "DYN_FILE_KV": str(directory / "discovery"),
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
        "DYN_EVENT_PLANE_HOST": "127.0.0.1",
        "DYN_LOG": "warn",
        "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
        "HF_HUB_OFFLINE": "1",
    }


async def _start(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> asyncio.subprocess.Process:
    with log.open("wb") as output:
        return await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


async def _ready(
    url: str, running: Mapping[str, asyncio.subprocess.Process], directory: Path
) -> None:
    """Returns once the model is served. Sends no request, because the first one fills the
    tokenizer's cache.

    Raises StackFailed.
    """
    try:
        async with asyncio.timeout(START_S), aiohttp.ClientSession() as session:
            while not await _listed(session, url):
                for stage, process in running.items():
                    if process.returncode is not None:
                        raise StackFailed(
                            f"{stage} ended with status {process.returncode}:\n{_said(directory)}"
                        )
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise StackFailed(
            f"Dynamo was not ready within {START_S:g} s:\n{_said(directory)}"
        ) from None


async def _listed(session: aiohttp.ClientSession, url: str) -> bool:
    timeout = aiohttp.ClientTimeout(ASK_S)
    try:
        async with session.get(f"{url}/v1/models", timeout=timeout) as answer:
            return answer.status == 200 and MODEL.encode() in await answer.read()
    except (aiohttp.ClientError, TimeoutError):
        return False


def _said(directory: Path) -> str:
    logs = sorted(directory.glob("*.log"))
    return "\n".join(
        f"{log.stem}: {log.read_bytes()[-LOG_BYTES:].decode('utf-8', 'replace')}" for log in logs
    )
