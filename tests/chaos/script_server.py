"""`python -m tests.chaos.script_server MODEL PORT`: a `vllm serve` that decodes with the script
engine, in a process of its own that can be killed or stopped."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

from tokenizers import Tokenizer

from schemas.conversation import Sampling
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineDelta, EngineInfo, EngineRequest
from tests.kit.listening import listen
from tests.worker.fake_vllm_server import FakeVllmServer
from turnwire_tools.script.engine import ScriptEngine

OPENING = "<|im_start|>assistant\n<think>\n"
"""What the demo model's template puts before a turn."""


class ScriptedLlm:
    """`AsyncLLM` over the script engine, as far as the fake server needs it."""

    dead = False
    args = SimpleNamespace(kv_events_config=None, scheduling_policy="priority")

    def __init__(self, engine: ScriptEngine, info: EngineInfo, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._opening = tokenizer.encode(OPENING, add_special_tokens=False).ids
        self._numbers = count()
        self.adapters: set[Any] = set()
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=info.max_model_len),
            cache_config=SimpleNamespace(
                block_size=info.block_tokens, num_gpu_blocks=1 << 16, enable_prefix_caching=True
            ),
        )

    async def generate(
        self, prompt: Any, sampling: Any, request_id: str, **_: Any
    ) -> AsyncGenerator[Any, None]:
        ids = prompt["prompt_token_ids"]
        request = EngineRequest(
            f"{request_id}.{next(self._numbers)}",
            ids,
            Sampling(
                max_tokens=sampling.max_tokens,
                min_tokens=sampling.min_tokens,
                logprobs=sampling.logprobs,
            ),
            sampling.stop_token_ids,
            cache_salt=prompt["cache_salt"],
            resumed=self._resumed(ids),
        )
        cached = 0
        async for delta in listen(self._engine, request):
            cached = cached if delta.cached is None else delta.cached
            yield SimpleNamespace(outputs=[_output(delta)], num_cached_tokens=cached)

    def _resumed(self, ids: Sequence[int]) -> int:
        """How many ids at the end of a prompt are output of an earlier attempt. A model goes on by
        itself, and a script must know where."""
        begin = self._opening[0]
        if begin not in ids:
            return 0
        since = ids[::-1].index(begin) + 1
        return max(0, since - len(self._opening))


def _output(delta: EngineDelta) -> Any:
    ids, rows = list(delta.ids), list(delta.logprobs or ())
    if delta.stop_id is not None:
        ids.append(delta.stop_id)
        rows.append(delta.stop_logprobs or [])
    logprobs = [{token: SimpleNamespace(logprob=logprob) for token, logprob in row} for row in rows]
    return SimpleNamespace(
        token_ids=ids,
        logprobs=None if delta.logprobs is None else logprobs,
        finish_reason=None if delta.finish is None else delta.finish.value,
        stop_reason=None,
        label="default",
    )


async def serve(model: str, port: int) -> None:
    engine = ScriptEngine(
        WorkerConfig(model=model, script_mode="request", token_delay_ms=0, family="qwen3_coder")
    )
    info = await engine.start()
    assert info.vocab_size is not None
    server = FakeVllmServer(vocabulary=info.vocab_size, dev_mode=False)
    server.engine = ScriptedLlm(engine, info, Tokenizer.from_file(f"{model}/tokenizer.json"))
    server.started = time.time()
    await server.open(port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
