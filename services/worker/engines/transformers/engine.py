"""The transformers engine: continuous batching with prefix sharing for any causal LM with full attention, CPU or GPU.

The library runs the model on a thread of its own and calls back on the event loop, once per token and turn. It was
built for batches, and lacks much of what a server needs; comments name what would happen without the code here. Two
limits remain: each callback carries a copy of all tokens so far (at 4,000 tokens a stream's speed has dropped by a
third), and the library refuses hybrid models (Qwen3-Next, Nemotron-H) at the start.

On a shared CPU, OpenMP threads that spin while they wait slow decoding down 10 to 30 times. They sleep instead, unless
the environment sets it; `OMP_NUM_THREADS=1` is the safe setting in containers.
"""

import random
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from schemas.control import Load
from schemas.conversation import Sampling
from schemas.errors import EngineFailed, Invalid
from services.runtime.config import WorkerConfig
from services.tokenization.model_files import with_defaults
from services.worker.engine import EngineInfo, EngineRequest, Sink
from services.worker.engines.support import OpenTurn, OpenTurns, decode_one, in_daemon_thread, run_for
from services.worker.engines.transformers.adapter import MAX_SEED, Progress, parse_args, row_arguments
from services.worker.engines.transformers.loader import Loaded, explain, load_model

THREAD_ENDED = "the generation thread has ended"


class TransformersEngine:
    """`Engine` over `ContinuousBatchingManager`."""

    explain = staticmethod(explain)

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._args = parse_args(config.engine_args)
        self._turns = OpenTurns("transformers")
        self._keys = count()
        self._cached: dict[str, tuple[int, float]] = {}
        """By the library's request id, until its first output: the prompt tokens that were found in the cache, and when
        they were searched, as the prefill began. Written on the library's thread."""
        self._held = 0
        self._stopping = False
        self._batches = -1
        """The number of steps that the library has run."""
        self._manager: Any = None
        self._rows: Any = None
        self._own: Sampling
        """The model's defaults."""
        self._info: EngineInfo

    async def start(self) -> EngineInfo:
        """Loads the model, starts the library's thread and decodes one token.

        Raises EngineFailed, with the library's message, if any of it fails.
        """
        # The library's thread is not a daemon by itself: an exception anywhere would leave a process that never ends.
        # Threads inherit that from the thread that starts them.
        try:
            loaded = await in_daemon_thread(self._load, "transformers-load")
        except Invalid:
            raise
        except Exception as error:
            raise EngineFailed(f"cannot load {self._config.model}: {type(error).__name__}: {error}") from error
        self._manager, self._info, self._own = loaded.manager, loaded.info, loaded.facts.sampling
        self._rows = loaded.rows
        self._turns.watch(self._config.watchdog_s, self._check)
        try:
            await decode_one(self, Sampling(max_tokens=1))
        except EngineFailed:
            await self.stop(1.0)
            raise
        return self._info

    def open(self, request: EngineRequest, sink: Sink) -> OpenTurn:
        """See `Engine.open`."""
        progress = Progress(request)
        # A new id for each request: the library hangs on a duplicate, and a late cancellation would hit the successor.
        key = f"{request.id}#{next(self._keys)}"
        prompt_tokens = len(request.token_ids)
        turn = self._turns.open(request.id, sink, lambda: self._release(key, prompt_tokens, progress))
        self._held += prompt_tokens
        try:
            self._submit(key, turn, request, progress)
        except Exception:
            turn.close()
            raise
        return turn

    def load(self) -> Load:
        """See `Engine.load`."""
        capacity = self._info.kv_tokens or 0
        used = min(1.0, self._held / capacity) if capacity else None
        return self._turns.load(self._config.slots, self._config.queue_limit, used)

    def healthy(self) -> bool:
        """See `Engine.healthy`."""
        # Not `fatal_error`: it stays None after some of the library's deaths.
        return self._turns.death is None and (self._stopping or self._manager is None or self._manager.is_running())

    async def stop(self, grace_s: float) -> None:
        """See `Engine.stop`."""
        self._stopping = True
        self._turns.stop()
        if (manager := self._manager) is not None:
            # Hard: a soft stop decodes every open turn to its end first.
            stop = partial(manager.stop, block=True, timeout=grace_s, hard_stop=True)
            await run_for(grace_s, stop, "transformers-stop")

    def _submit(self, key: str, turn: OpenTurn, request: EngineRequest, progress: Progress) -> None:
        """Submits the request. Raises EngineDied if the library takes nothing any more."""
        arguments: dict[str, Any] = {}
        if self._args.mode == "sampling":
            sampling = with_defaults(request.sampling, self._own)
            seed = None if sampling.logprobs is None else random.randrange(MAX_SEED)
            arguments = row_arguments(sampling, seed)
            if self._rows is not None:
                progress.host_logprobs = self._rows.open(key, request, sampling)
        # The handler first: outputs that come before it land in a shared queue, and the turn would hang.
        self._manager.register_result_handler(key, self._callback(key, turn, progress))
        added = self._manager.add_request(
            list(request.token_ids),
            request_id=key,
            max_new_tokens=max(1, request.sampling.max_tokens or 0),  # with 0 it would decode a token and log a warning
            streaming=True,
            # -1 is no token; an empty list would mean the model's own end tokens.
            eos_token_id=sorted(set(request.stop_ids)) or [-1],
            **arguments,
        )
        if added is None:
            turn.close()  # the exception reports the death to this one
            self._turns.die(THREAD_ENDED)
            raise self._turns.died()

    def _callback(self, key: str, turn: OpenTurn, progress: Progress) -> Callable[[Any], None]:
        opened = time.monotonic()

        def deliver(output: Any) -> None:
            # Nothing may be raised here: all outputs of a step are delivered in one go, and the others would be lost.
            try:
                progress.finished = output.is_finished()
                if output.error is not None:
                    self._failed(turn, output.error)
                elif not turn.ended:
                    before = progress.taken
                    cached, begun = (None, None) if before else self._cached.pop(key, (0, None))
                    delta = progress.take(output.generated_tokens, output.logprobs, cached)
                    delta.waited_s = None if begun is None else begun - opened
                    self._held += progress.taken - before
                    turn.put(delta)
            except Exception as error:
                turn.fail(EngineFailed(f"{type(error).__name__}: {error}"))

        return deliver

    def _failed(self, turn: OpenTurn, error: str) -> None:
        """One request was refused, or the whole thread is ending: it fails its requests one by one first."""
        status = getattr(self._manager, "background_thread_status", None)
        stopping = status is not None and status.local_status >= status.HARD_STOP
        if stopping or not self._manager.is_running() or getattr(self._manager, "fatal_error", None) is not None:
            self._turns.die(error)
        else:
            turn.fail(EngineFailed(f"transformers: {error}"))

    def _release(self, key: str, prompt_tokens: int, progress: Progress) -> None:
        """The turn has ended. A cancelled request gets no last output, so that its handler would stay for ever."""
        self._held -= prompt_tokens + progress.taken
        self._cached.pop(key, None)
        if self._rows is not None:
            self._rows.close(key)
        if not progress.finished:
            self._manager.cancel_request(key)
            router = self._manager.output_router
            with router._lock:
                router.result_handlers.pop(key, None)

    def _check(self) -> str | None:
        """Notes steps, which the library does not report, and a thread that has ended without a report."""
        if self._batches != self._manager.current_batch:
            self._batches = self._manager.current_batch
            self._turns.stepped()
        return None if self._manager.is_running() else THREAD_ENDED

    def _load(self) -> Loaded:
        """On a thread of its own: up to the running generation thread."""
        loaded = load_model(self._config, self._args)
        manager, cache = loaded.manager, loaded.manager.batch_processor.cache
        search = cache.search_prefix_match

        def observed(request_id: str, prompt_ids: list[int]) -> int:
            found: int = search(request_id, prompt_ids)
            self._cached[request_id] = found, time.monotonic()
            return found

        cache.search_prefix_match = observed  # only the search reports how much of a prompt is in the cache
        manager.current_batch = 0
        manager.start()
        return loaded
