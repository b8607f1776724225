"""Starts the two servers: vLLM's own, and Turnwire over the same vLLM with the same settings."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from msgspec import Struct

from bench.ledger.published import of_trl
from bench.random_model import build
from bench.stack import StackFailed, end_process, free_port, own_stack
from bench.vllm.scripts import MARKS, SCRIPTS

FORCED = "bench.vllm.forced:Forced"
NAME = "bench/vllm"
TEMPLATE = "qwen3_6"
"""A published template of a model that thinks and calls tools."""
START_S = 1800.0
"""On a busy CPU vLLM takes minutes."""
STREAMS = 32
ROOT = Path(__file__).parents[2]


class Server(Struct, frozen=True):
    """A running server."""

    url: str
    pid: int
    """Process id of the server's main process."""


def engine_arguments(window: int) -> dict[str, Any]:
    """Returns the arguments of vLLM's engine, the same for both servers."""
    return {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": window,
        "max_num_seqs": STREAMS,
        "block_size": 32,
        "max_num_batched_tokens": 2048,  # the default depends on who starts the engine
        "logits_processors": [FORCED],
    }


def build_model(path: Path, *, hidden: int, layers: int) -> Path:
    """Makes a model with random weights, the demo's tokenizer and a published chat template."""
    build(path, hidden=hidden, layers=layers)
    shutil.copyfile(of_trl()[TEMPLATE], path / "chat_template.jinja")
    return path


def set_environment(scripts: Mapping[str, Sequence[str]], folder: Path) -> Path:
    """Sets the environment that both servers inherit. Returns the file of the marks."""
    (folder / "scripts.json").write_text(json.dumps(scripts), encoding="utf-8")
    marks = folder / "marks"
    marks.touch()
    os.environ |= {
        SCRIPTS: str(folder / "scripts.json"),
        MARKS: str(marks),
        "PYTHONPATH": str(ROOT),
    }
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    # Otherwise each of vLLM's processes would compile thousands of modules again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return marks


@asynccontextmanager
async def turnwire(model: Path, window: int, *flags: str) -> AsyncIterator[Server]:
    """`turnwire up --engine vllm`. Raises StackFailed."""
    own = {
        key: value
        for key, value in engine_arguments(window).items()
        if key not in ("dtype", "max_model_len")
    }
    arguments = [
        "--engine=vllm",
        f"--model={model}",
        f"--served-model-name={NAME}",
        "--dtype=float32",
        f"--max-model-len={window}",
        f"--slots={STREAMS}",
        f"--watchdog-s={START_S}",
        f"--engine-args={json.dumps(own)}",
    ]
    async with own_stack([*arguments, *flags], start_s=START_S) as stack:
        yield Server(stack.url, stack.pid)


@asynccontextmanager
async def vllm_server(model: Path, window: int) -> AsyncIterator[Server]:
    """vLLM's own server, as `vllm serve` starts it (a command that ends with an error in the
    package for CPUs).

    Raises StackFailed.
    """
    port = free_port()
    flags = []
    for name, value in engine_arguments(window).items():
        flag = f"--{name.replace('_', '-')}"
        flags += (
            [flag]
            if value is True
            else [flag, *(value if isinstance(value, list) else [str(value)])]
        )
    command = [
        *(
            sys.executable,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ),
        *("--model", str(model), "--served-model-name", NAME, *flags),
        *(
            "--enable-auto-tool-choice",
            "--tool-call-parser",
            "qwen3_coder",
            "--reasoning-parser",
            "qwen3",
        ),
        "--enable-prompt-tokens-details",
        *("--uvicorn-log-level", "warning"),
    ]
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
        )
        url = f"http://127.0.0.1:{port}"
        try:
            try:
                await _healthy(url, process)
            except (StackFailed, TimeoutError) as error:
                log.seek(0)
                raise StackFailed(
                    f"vLLM's server: {error}\n{log.read()[-4000:].decode(errors='replace')}"
                ) from error
            yield Server(url, process.pid)
        finally:
            await end_process(process)


async def _healthy(url: str, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(START_S), aiohttp.ClientSession() as http:
        while True:
            if process.returncode is not None:
                raise StackFailed(f"it ended with status {process.returncode}")
            try:
                async with http.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)
