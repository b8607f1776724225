"""An engine that counts: words of one token each, which differ from worker to worker."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from msgspec import Struct, structs
from tokenizers import Tokenizer
from typing_extensions import override

from schemas.control import Load
from schemas.errors import EngineFailed
from schemas.events import FinishReason
from services.preprocessor.model.model_setup import ModelSetup
from services.runtime.config.stages import PreprocessorConfig
from services.runtime.storage.seal import Sealer
from services.tokenization.detokenizer import Vocabulary
from services.worker import engine as contract

STRIDE = 7
WINDOW = 1_000_000
QUEUE = 100
SLOTS = 1000


class Plan(Struct):
    """What an engine does with one turn, on any worker."""

    length: int = 40
    """Words until the model stops."""
    pace_s: float = 0.0
    fail_at: int | None = None
    """Words after which the engine fails this turn."""
    hold_at: int | None = None
    """Words after which the engine pauses until `go` is set."""
    go: asyncio.Event = asyncio.Event()
    cached: int | None = None
    burst: int = 1
    """Tokens of one engine step."""


class Model:
    """A demo model's vocabulary, and words of one token each."""

    def __init__(self, directory: Path, name: str = "turnwire-demo") -> None:
        self.name = name
        self.directory = directory
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        vocabulary = tokenizer.get_vocab()
        plain = sorted(t for t in vocabulary if t[0] == "Ġ" and t[1:].isalpha() and len(t) > 5)
        self.words = [(vocabulary[t], t[1:]) for t in plain if t[1:].isascii()][:1000]
        self.place = {word: index for index, (_, word) in enumerate(self.words)}
        self.close = [vocabulary["</think>"], vocabulary["ĊĊ"]]
        self.eos = vocabulary["<|im_end|>"]
        self.vocabulary = Vocabulary(tokenizer)
        self.sealer = Sealer(b"test")
        config = PreprocessorConfig(model=str(directory), served_model_name=name)
        self.setup = ModelSetup.load(config)

    def output(self, salt: int, length: int) -> list[int]:
        """Two words of thought, then `length` words of text."""
        words = [self.words[(i * STRIDE + salt) % len(self.words)][0] for i in range(length + 2)]
        return [*words[:2], *self.close, *words[2:]]

    def salts(self, text: str, first: int) -> list[int]:
        """Which worker wrote each word of a text; `first`: the index of its first word."""
        words = enumerate(text.split(), first)
        return [(self.place[word] - i * STRIDE) % len(self.words) for i, word in words]


class EngineTurn:
    """A turn of a `CountingEngine`."""

    def __init__(self, task: "asyncio.Task[None]") -> None:
        self._task = task

    def close(self) -> None:
        self._task.cancel()


class CountingEngine(contract.Engine):
    """An engine that writes numbered words."""

    def __init__(
        self,
        model: Model,
        salt: int,
        plans: dict[str, Plan],
        block_tokens: int | None = None,
    ) -> None:
        """`block_tokens`: of a prefix cache; None: there is none."""
        self.block_tokens = block_tokens
        self.shares_queued = False
        self.model = model
        self.salt = salt
        self.plans = plans
        self.running: dict[str, int] = {}
        """Running requests: how many tokens each has."""
        self.seen: list[contract.EngineRequest] = []
        self.alive = True
        self._tasks: set[asyncio.Task[None]] = set()

    def has(self, turn: str) -> bool:
        """Whether an attempt at this turn runs."""
        return any(request.startswith(f"{turn}.") for request in self.running)

    @override
    async def start(self) -> contract.EngineInfo:
        features = frozenset(
            {"logprobs", "min_tokens", "seed"} | ({"prefix_cache"} if self.block_tokens else set())
        )
        eos = [self.model.eos]
        info = contract.EngineInfo(
            "counting", "1", WINDOW, SLOTS, self.block_tokens, None, eos, features
        )
        return structs.replace(info, shares_queued=self.shares_queued)

    @override
    def open(self, request: contract.EngineRequest, sink: contract.Sink) -> EngineTurn:
        self.seen.append(request)
        task = asyncio.create_task(self._run(request, sink))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return EngineTurn(task)

    async def _run(self, request: contract.EngineRequest, sink: contract.Sink) -> None:
        self.running[request.id] = request.resumed
        try:
            async for delta in self._decode(request):
                self.running[request.id] += len(delta.ids)
                sink.put(delta)
        except EngineFailed as error:
            sink.fail(error)
        finally:
            del self.running[request.id]

    async def _decode(
        self, request: contract.EngineRequest
    ) -> AsyncGenerator[contract.EngineDelta, None]:
        plan = self.plans.get(request.id.rpartition(".")[0], Plan())
        ids = self.model.output(self.salt, plan.length)
        end = request.resumed + (request.sampling.max_tokens or 0)
        done, cached = request.resumed, plan.cached
        while done < min(len(ids), end):
            if plan.hold_at is not None and done >= plan.hold_at:
                await plan.go.wait()
            if plan.fail_at is not None and done >= plan.fail_at:
                raise EngineFailed("CUDA error")
            if not self.alive:
                raise contract.EngineDied("the engine died")
            await asyncio.sleep(plan.pace_s)
            step = ids[done : min(done + plan.burst, end)]
            logprobs = None
            if request.sampling.logprobs is not None:
                logprobs = [[(token, -0.5)] for token in step]
            yield contract.EngineDelta(step, logprobs=logprobs, cached=cached)
            done, cached = done + len(step), None
        if plan.hold_at is not None and done >= plan.hold_at:
            await plan.go.wait()
        if len(ids) > end:
            yield contract.EngineDelta(finish=FinishReason.LENGTH)
        else:
            yield contract.EngineDelta(finish=FinishReason.STOP, stop_id=self.model.eos)

    @override
    def load(self) -> Load:
        return Load(running=len(self.running), slots=SLOTS, queue_limit=QUEUE)

    @override
    def death(self) -> str | None:
        return None if self.alive else "the test ended it"

    @override
    async def stop(self, grace_s: float) -> None:
        self.alive = False
        for task in self._tasks:
            task.cancel()


def held(at: int, length: int = 60) -> Plan:
    """A turn that pauses after `at` tokens until its `go` is set."""
    return Plan(length=length, hold_at=at, go=asyncio.Event())
