"""`turnwire up --engine vllm` with a random model that writes what its prompt brings, or what the
scripted agent would answer (`bench.vllm.scripts`): a logits processor of vLLM leaves it one token
at each step.

With `[[split]]` in the request these are tokens that no tokenizer would choose for the text.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.vllm.scripts import FORCED
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack
from tests.kit.waiting import ENGINE_LIMIT_S

BLOCK = 32
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
        "watchdog_s": ENGINE_LIMIT_S,
        "engine_args": json.dumps(ENGINE_ARGS),
        **options,
    }
    with pytest.MonkeyPatch.context() as patch:
        # vLLM's processes must find the logits processor.
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        stack.start_up(**flags)
    try:
        stack.wait_ready(timeout_s=ENGINE_LIMIT_S)
    except BaseException:
        stack.stop()
        raise
    return stack
