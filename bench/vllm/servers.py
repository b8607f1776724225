"""Starts the two servers: vLLM's own, and Turnwire over the same vLLM with the same settings."""

import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.ledger.published import of_trl
from bench.random_model import build
from bench.stack import ROOT, Running, answers, free_port, own_stack, processes
from bench.vllm.scripts import MARKS, SCRIPTS

FORCED = "bench.vllm.forced:Forced"
NAME = "bench/vllm"
TEMPLATE = "qwen3_6"
"""A published template of a model that thinks and calls tools."""
START_S = 1800.0
"""On a busy CPU vLLM takes minutes."""
STREAMS = 32


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
async def turnwire(model: Path, window: int, *flags: str) -> AsyncIterator[Running]:
    """`turnwire up --engine vllm`. Raises StackFailed."""
    own = {
        key: value
        for key, value in engine_arguments(window).items()
        if key not in ("dtype", "max_model_len")
    }
    arguments = [
        *("--engine=vllm", f"--model={model}", f"--served-model-name={NAME}", "--dtype=float32"),
        f"--max-model-len={window}",
        f"--slots={STREAMS}",
        f"--watchdog-s={START_S}",
        f"--engine-args={json.dumps(own)}",
    ]
    async with own_stack([*arguments, *flags], start_s=START_S) as stack:
        yield stack


@asynccontextmanager
async def vllm_server(model: Path, window: int) -> AsyncIterator[Running]:
    """vLLM's own server, as `vllm serve` starts it (a command that ends with an error in the
    package for CPUs).

    Raises StackFailed.
    """
    port = free_port()
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--model", str(model), "--served-model-name", NAME),
        *("--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder"),
        *("--reasoning-parser", "qwen3", "--enable-prompt-tokens-details"),
        *("--uvicorn-log-level", "warning"),
    ]
    for name, value in engine_arguments(window).items():
        command.append(f"--{name.replace('_', '-')}")
        if value is not True:
            command += value if isinstance(value, list) else [str(value)]
    url = f"http://127.0.0.1:{port}"

    async def healthy() -> bool:
        return await answers(f"{url}/health")

    async with processes({"vllm": command}, healthy, START_S) as running:
        yield Running(url, NAME, {"vllm": running["vllm"].pid}, Path(), 0.0)
