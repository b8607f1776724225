"""Starts Dynamo's frontend and the scripted worker for one run, on free ports of the loopback, and
ends them."""

import os
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench.dynamo import MODEL
from bench.stack import ROOT, SCRIPTS, Running, answers, free_port, processes

FRONTEND = (
    "--discovery-backend=file",
    "--request-plane=tcp",
    "--event-plane=zmq",
    "--enable-anthropic-api",
    "--strip-anthropic-preamble",
    "--enable-streaming-tool-dispatch",
)


@asynccontextmanager
async def dynamo_stack(
    python: Path, model: Path, flags: Sequence[str] = ()
) -> AsyncIterator[Running]:
    """Starts both, with `flags` for the frontend, and ends them. `model`: the directory that both
    read. Raises StackFailed."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    module = (str(python), "-m")
    listening = ("--http-host=127.0.0.1", f"--http-port={port}")
    with tempfile.TemporaryDirectory(prefix="turnwire-dynamo-") as name:
        folder = Path(name)
        marks = folder / "marks"
        marks.touch()
        named = (f"--model={model}", f"--name={MODEL}")
        scripts = (f"--scripts={SCRIPTS}", f"--marks={marks}")
        commands = {
            "frontend": (*module, "dynamo.frontend", *listening, *FRONTEND, *flags),
            "worker": (*module, "bench.dynamo.worker", *named, *scripts),
        }

        async def listed() -> bool:
            # No request is sent, because the first one fills the tokenizer's cache.
            return await answers(f"{url}/v1/models", MODEL.encode())

        started = time.monotonic()
        async with processes(commands, listed, env=_environment(folder)) as running:
            took = round(time.monotonic() - started, 3)
            pids = {stage: one.pid for stage, one in running.items()}
            yield Running(url, MODEL, pids, marks, took)


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
