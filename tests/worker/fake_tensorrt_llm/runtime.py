"""The running half of the fake: a thread that decodes, result objects that change in place, and a
cache that reports. It has the traps of TensorRT-LLM, for example that leaving the iterator stops
nothing.
"""

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from services.worker.engines.trtllm.releases import Release

VOCAB = 512
BLOCK = 32
STEP_S = 0.0005
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


def since(release: Release, version: str) -> bool:
    return Version(release.version) >= Version(version)


def reports_death(release: Release) -> bool:
    """Whether open requests get an error when the worker has died: since 1.3.0rc24, as errors of
    long prompts."""
    return bool(release.refuses_long_prompts)


class RequestError(RuntimeError):
    """This request alone failed."""


class EngineDeadError(RuntimeError):
    """Sticky: the engine is gone (main of 2026)."""


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass
class CompletionOutput:
    index: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class Response:
    tokens: list[int]
    finish_reason: str | None = None
    stop_reason: int | None = None
    cached: int = 0
    cut: int = 0


class Executor:
    """What `LLM._executor` shows: whether the library has given up."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self.doing_shutdown = False

    def is_shutdown(self) -> bool:
        return self.doing_shutdown


class RequestOutput:
    """Result, future and asynchronous iterator in one."""

    def __init__(
        self, engine: "Runtime", prompt: list[int], sampling: Any, salt: str | None, priority: float
    ) -> None:
        """`sampling`: of either version."""
        self.request_id = next(engine.ids)
        self.prompt_token_ids = prompt
        self.outputs = [CompletionOutput(logprobs=[] if sampling.logprobs else None)]
        self.cached_tokens = 0
        self.cached_then = 0
        """Tokens found in the cache at its first step."""
        self.finished = False
        self.sampling = sampling
        self.salt = salt
        self.priority = priority
        self.cache_arguments: dict[str, Any] = {}
        self.aborts = 0
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Response | Exception] = asyncio.Queue()

    def aborted(self) -> bool:
        return self.aborts > 0

    def abort(self) -> None:
        self.aborts += 1
        self._engine.enqueue_abort(self)

    def deliver(self, response: Response | Exception) -> None:
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, response)
        except RuntimeError:
            pass

    def __aiter__(self) -> "RequestOutput":
        return self

    async def __anext__(self) -> "RequestOutput":
        if self.finished:
            raise StopAsyncIteration
        response = await self._queue.get()
        if isinstance(response, Exception):
            raise response
        out = self.outputs[0]
        out.token_ids.extend(response.tokens)
        if out.logprobs is not None:
            count = range(1, max(2, self.sampling.logprobs))
            out.logprobs += [
                {**{token + n: Logprob(-1.5 - n, n + 1) for n in count}, token: Logprob(-0.5, 1)}
                for token in response.tokens
            ]
        if response.cut:
            del out.token_ids[-response.cut :]
        out.finish_reason, out.stop_reason = response.finish_reason, response.stop_reason
        self.cached_tokens = response.cached
        self.finished = response.finish_reason is not None
        return self


def next_token(tokens: Sequence[int]) -> int:
    """The model: a function of all tokens before."""
    return (sum(tokens[-7:]) * 31 + len(tokens) * 7 + 3) % VOCAB


class Runtime:
    """The worker process at the end of the queues."""

    def __init__(
        self,
        batch: int,
        release: Release,
        window: int | None,
        *,
        by_priority: bool,
    ) -> None:
        self.ids = itertools.count(1)
        self.outputs: list[RequestOutput] = []
        """Every result object of a request that was taken."""
        self.waiting: deque[RequestOutput] = deque()
        self.running: dict[RequestOutput, list[int]] = {}
        self.aborts: deque[RequestOutput] = deque()
        self.cache: set[tuple[str | None, tuple[int, ...]]] = set()
        self.events: deque[dict[str, Any]] = deque()
        self.iterations: deque[dict[str, Any]] = deque()
        self.read_out = {"events": False, "iterations": False}
        """Queue → whether reading has ended until the next request."""
        self.breaches: list[str] = []
        """What the adapter must not do, and did."""
        self.event_id = 0
        self.first_request = False
        self.iteration = 0
        self.held = False
        """True: decodes nothing, but lives."""
        self.dead = False
        self.down = False
        self.drafts: dict[str, Any] | None = None
        """The configuration of speculative decoding in the model's graph."""
        self._batch = batch
        self._release = release
        self._window = window
        self._by_priority = by_priority
        self._end_id_in_ids = reports_death(release)  # releases may differ in that
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True, name="fake-trtllm")
        self._thread.start()

    def drain(self, what: str) -> list[dict[str, Any]]:
        queue: deque[dict[str, Any]] = getattr(self, what)
        return [queue.popleft() for _ in range(len(queue))]

    def submit(self, output: RequestOutput) -> None:
        sampling, prompt = output.sampling, len(output.prompt_token_ids)
        self.breaches += [
            f"{name} is ignored"
            for name in self._release.ignored
            if getattr(sampling, name) is not None
        ]
        if not self._by_priority and output.priority != 0.5:
            self.breaches.append("priority is ignored")
        if refused := self._undrafted(sampling):
            output.deliver(RequestError(refused))
            return
        if self._window is not None:
            room = self._window - prompt
            if room <= 0:
                output.deliver(
                    RequestError(
                        f"`default_max_tokens` ({room}) = max_seq_len ({self._window}) - ..."
                    )
                )
                return
            sampling.max_tokens = min(sampling.max_tokens, room)
        if sampling.ignore_eos:
            sampling.end_id, sampling.stop_token_ids = -1, None
        with self._wake:
            self.first_request = True
            self.read_out = dict.fromkeys(self.read_out, False)
            self.outputs.append(output)
            self.waiting.append(output)
            self._wake.notify()

    def _undrafted(self, sampling: Any) -> str:
        """Returns why speculative decoding refuses the request at admission; fields that it ignores
        are breaches."""
        if self.drafts is None:
            return ""
        penalties = () if self.drafts.get("enable_penalty") else PENALTIES
        sent = {
            name
            for name in ("min_p", "min_tokens", "embedding_bias", *penalties)
            if getattr(sampling, name) is not None
        }
        refused = {"min_p", *PENALTIES} if since(self._release, "1.3.0rc26") else {"min_p"}
        self.breaches += [f"{name} is ignored by speculative decoding" for name in sent - refused]
        return " and ".join(
            sorted(f"{name} is not supported with speculative decoding" for name in sent & refused)
        )

    def enqueue_abort(self, output: RequestOutput) -> None:
        with self._wake:
            self.aborts.append(output)
            self._wake.notify()

    def kill(self, reason: str = "MPI worker was killed") -> None:
        with self._wake:
            self.dead = True
            pending = [*self.running, *self.waiting]
            self.running.clear()
            self.waiting.clear()
            self._wake.notify()
        if reports_death(self._release):
            for output in pending:
                output.deliver(EngineDeadError(reason))

    def shutdown(self) -> None:
        with self._wake:
            self.down = True
            self._wake.notify()
        self._thread.join(5)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (
                    self.down
                    or self.dead
                    or self.aborts
                    or ((self.running or self.waiting) and not self.held)
                ):
                    self._wake.wait(0.05)
                if self.down or self.dead:
                    return
                while self.aborts:
                    self._abort(self.aborts.popleft())
                if not self.held:
                    while self.waiting and len(self.running) < self._batch:
                        output = self.waiting.popleft()
                        self.running[output] = list(output.prompt_token_ids)
                    for output in list(self.running):
                        self._step(output)
                    self.iteration += 1
                    stats = {
                        "iter": self.iteration,
                        "kvCacheStats": {"usedNumBlocks": len(self.running), "maxNumBlocks": 100},
                    }
                    self.iterations.append(stats)
            time.sleep(STEP_S)

    def _abort(self, output: RequestOutput) -> None:
        if self.running.pop(output, None) is not None or output in self.waiting:
            if output in self.waiting:
                self.waiting.remove(output)
            output.deliver(Response([], "cancelled"))

    def _step(self, output: RequestOutput) -> None:
        tokens, sampling = self.running[output], output.sampling
        prompt = len(output.prompt_token_ids)
        cached = 0
        if len(tokens) == prompt:
            cached = self._match(tokens, output.salt)
            self._store(tokens, output.salt, 0)
            output.cached_then = cached
        token = next_token(tokens)
        tokens.append(token)
        made = len(tokens) - prompt
        response = Response([token], cached=output.cached_then)
        honoured = "min_tokens" not in self._release.ignored
        allowed = (made if honoured else len(tokens)) > (sampling.min_tokens or 0)
        if token == sampling.end_id and not sampling.ignore_eos and allowed:
            response.finish_reason = "stop"
            response.tokens = [token] if self._end_id_in_ids else []
        elif token in (sampling.stop_token_ids or []):
            response.finish_reason, response.stop_reason = "stop", token
            response.cut = 0 if sampling.include_stop_str_in_output else 1
        elif made >= sampling.max_tokens:
            response.finish_reason = "length"
        self._store(tokens[:-1], output.salt, prompt)
        if response.finish_reason:
            del self.running[output]
        output.deliver(response)

    def _match(self, tokens: list[int], salt: str | None) -> int:
        held = 0
        while held + BLOCK < len(tokens) and (salt, tuple(tokens[: held + BLOCK])) in self.cache:
            held += BLOCK
        return held

    def _store(self, tokens: list[int], salt: str | None, since: int) -> None:
        for end in range((since // BLOCK) * BLOCK + BLOCK, len(tokens) + 1, BLOCK):
            key = (salt, tuple(tokens[:end]))
            if key not in self.cache:
                self.cache.add(key)
                parent = hash((salt, tuple(tokens[: end - BLOCK]))) if end > BLOCK else None
                block = {
                    "type": "stored_block",
                    "block_hash": hash(key),
                    "tokens": [
                        {"type": "unique_token", "token_id": t, "token_extra_id": 0}
                        for t in tokens[end - BLOCK : end]
                    ],
                    "cache_level": 0,
                    "priority": 35,
                }
                data = {"type": "stored", "parent_hash": parent, "blocks": [block]}
                self.events.append({"event_id": self.event_id, "window_size": 4096, "data": data})
                self.event_id += 1
