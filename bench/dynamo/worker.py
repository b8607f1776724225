"""A worker for Dynamo that answers token ids with the tokens of a script, one chunk per token. Runs
in Dynamo's own environment, with this repository on its path.

It plays what Turnwire's script engine plays, from the same pure core (`script_player`): the
prompt's tail names the script, the first token is emitted at once, and streams of one pace are
stepped together, like an engine's batches. Flat out there is no wait between two tokens. Marks are
written to a file, as there.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import uvloop
from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model  # type: ignore[import-not-found]
from dynamo.runtime import DistributedRuntime  # type: ignore[import-not-found]
from tokenizers import Tokenizer

from schemas.conversation import Sampling
from turnwire_tools.script import player

TAIL = 160
"""Tokens at the end of the prompt that contain the directive."""
DEFAULT_MAX_TOKENS = 1 << 20


class Steps:
    """One timer for all streams of one pace: they wake together, at multiples of it."""

    def __init__(self) -> None:
        self._next: dict[int, asyncio.Future[None]] = {}
        """The next step of each pace, in ns."""

    def wait(self, period_ns: int) -> asyncio.Future[None]:
        """Returns a future that is done at the next step of a pace."""
        waiting = self._next.get(period_ns)
        if waiting is None:
            loop = asyncio.get_running_loop()
            waiting = self._next[period_ns] = loop.create_future()
            self._step(period_ns, (time.monotonic_ns() // period_ns + 1) * period_ns)
        return waiting

    def _step(self, period_ns: int, due_ns: int) -> None:
        """Wakes the streams, or waits for the remaining time: timers of the loop count in ms, and
        may fire early."""
        left_ns = due_ns - time.monotonic_ns()
        if left_ns > 0:
            asyncio.get_running_loop().call_later(left_ns / 1e9, self._step, period_ns, due_ns)
        else:
            self._next.pop(period_ns).set_result(None)


class Player:
    """Scripts in tokens of one model, chosen by the prompts that name them."""

    def __init__(self, model: Path, scripts: Path, marks: Path | None) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        eos = json.loads((model / "config.json").read_text())["eos_token_id"]
        self._eos = eos if isinstance(eos, list) else [eos]
        self._scripts: dict[str, player.Script] = {}
        for path in sorted(scripts.iterdir()):
            self._scripts |= player.parse_file(path.name, path.read_text(encoding="utf-8"))
        self._prose = self.encode(player.PROSE)
        self._compiled = lru_cache(64)(self._compile)
        self._marks = os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if marks else -1
        self._steps = Steps()

    async def generate(
        self, request: dict[str, Any], context: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Yields one answer, in the chunks that Dynamo expects."""
        directive = self._directive(request["token_ids"])
        limit = (request.get("stop_conditions") or {}).get("max_tokens") or DEFAULT_MAX_TOKENS
        script = self._compiled(directive.name, directive.n)
        play = player.perform(script, Sampling(max_tokens=limit), self._eos, self._eos, self._prose)
        period_ns = round((directive.delay_ms or 0) * 1e6)
        marks = [(at, cue) for at, cue in play.actions if cue.kind == "mark"]
        for at, token in enumerate(play.ids):
            if period_ns and at:
                await self._steps.wait(period_ns)
                if context.is_stopped():
                    return
            while marks and marks[0][0] == at:
                self._mark(directive, marks.pop(0)[1])
            yield {"token_ids": [token]}
        if period_ns:
            await self._steps.wait(period_ns)
        for _, cue in marks:
            self._mark(directive, cue)
        yield {
            "token_ids": [] if play.stop_id is None else [play.stop_id],
            "finish_reason": play.finish.value,
        }

    def _directive(self, prompt: Sequence[int]) -> player.PlayDirective:
        tail = self._tokenizer.decode(list(prompt[-TAIL:]), skip_special_tokens=False)
        found = player.find_directive(tail)
        if found is None:
            raise ValueError("the prompt names no script: [[play NAME n=16]]")
        return found

    def _compile(self, name: str, n: int) -> player.Playback:
        return player.compile_script(self._scripts[name], self.encode, self._prose, n)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _mark(self, directive: player.PlayDirective, cue: player.Action) -> None:
        if self._marks >= 0:
            # One write each, so that readers of the file see complete lines.
            os.write(self._marks, f"{directive.id} {cue.text} {time.monotonic_ns()}\n".encode())


async def serve(asked: argparse.Namespace) -> None:
    """Registers the model and serves until the process is stopped."""
    loop = asyncio.get_running_loop()
    runtime = DistributedRuntime(loop, "file", "tcp")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, runtime.shutdown)
    endpoint = runtime.endpoint("bench.backend.generate")
    config = json.loads((asked.model / "config.json").read_text())
    facts = ModelRuntimeConfig()
    facts.context_length = config["max_position_embeddings"]
    facts.max_num_seqs, facts.max_num_batched_tokens, facts.total_kv_blocks = 4096, 1 << 18, 1 << 20
    facts.tool_call_parser, facts.reasoning_parser = "qwen3_coder", "qwen3"
    await register_model(
        ModelInput.Tokens,
        ModelType.Chat | ModelType.Completions,
        endpoint,
        str(asked.model),
        asked.name,
        worker_type=WorkerType.Aggregated,
        kv_cache_block_size=16,
        runtime_config=facts,
    )
    played = Player(asked.model, asked.scripts, asked.marks)
    print(f"serving {asked.name}", file=sys.stderr, flush=True)
    await endpoint.serve_endpoint(played.generate)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A scripted worker for Dynamo.")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR")
    parser.add_argument("--name", required=True, help="under which it is served")
    parser.add_argument("--scripts", type=Path, required=True, metavar="DIR")
    parser.add_argument("--marks", type=Path, metavar="FILE")
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
