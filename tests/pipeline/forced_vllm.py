"""`turnwire up --engine vllm` with a random model that writes what its prompt brings, or what the
scripted agent would answer (`bench.vllm.scripts`): a logits processor of vLLM leaves it one token
at each step.

With `[[split]]` in the request these are tokens that no tokenizer would choose for the text.
"""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from bench.vllm.scripts import FORCED
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack

BLOCK = 32
LIMIT_S = 1800.0
"""For everything that waits for an engine, which starts in minutes on a busy CPU."""
ENGINE_ARGS = {
    "block_size": BLOCK,
    "enforce_eager": True,
    "logits_processors": [FORCED],
    # A random model would fill the JSON with white space.
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}


def start_up(
    nats: NatsServer, model: Path, directory: Path, name: str, window: int, **options: Any
) -> Stack:
    """`turnwire up`, ready. Stop it also where this raises."""
    stack = Stack(nats, model, directory)
    stack.names.add(name)
    flags = {
        "engine": "vllm",
        "served_model_name": name,
        "slots": 8,
        "dtype": "float32",
        "max_model_len": window,
        "watchdog_s": LIMIT_S,
        "engine_args": json.dumps(ENGINE_ARGS),
        **options,
    }
    with pytest.MonkeyPatch.context() as patch:
        # vLLM's processes must find the logits processor.
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        stack.start_up(**flags)
    try:
        stack.wait_ready(timeout_s=LIMIT_S)
    except BaseException:
        stack.stop()
        raise
    return stack


def descendants(pid: int) -> list[int]:
    """The processes below one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found += [int(path.parent.name), *descendants(int(path.parent.name))]
    return found


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def gone(pids: list[int]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while any(map(alive, pids)):
            await asyncio.sleep(0.1)
