"""The transformers engine: continuous batching with prefix sharing for causal LMs with full
attention, on CPU or GPU.

The library runs the model on its own thread and calls back on the event loop, once per token and
turn. It was built for batches and lacks much that a server needs; comments name what would happen
without the code here. Two limits remain: each callback carries a copy of all tokens so far (at
4,000 tokens a stream's speed has dropped by a third), and the library refuses hybrid models
(Qwen3-Next, Nemotron-H) at the start.

On a shared CPU, OpenMP threads that spin while they wait make decoding 10 to 30 times slower. They
sleep here, unless the environment sets it; `OMP_NUM_THREADS=1` is the safe setting in containers.
"""

import asyncio
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

from typing_extensions import override

from schemas.control import Load
from schemas.conversation import Sampling
from schemas.errors import EngineFailed, Invalid, TurnwireError
from services.runtime.config.stages import WorkerConfig
from services.tokenization.model_files import with_defaults
from services.worker.engine import (
    EngineInfo,
    EngineRequest,
    Sink,
    UpdatableEngine,
    load_failure,
)
from services.worker.engines.daemon_threads import in_daemon_thread, run_for
from services.worker.engines.open_turns import EngineTurn, OpenTurns
from services.worker.engines.transformers.adapter import (
    MAX_SEED,
    TransformersProgress,
    parse_args,
    row_arguments,
)
from services.worker.engines.transformers.loader import LoadedModel, explain, load_model
from services.worker.engines.trial import decode_trial

THREAD_ENDED = "the generation thread has ended"
_SHARE_BLOCKS = ("mark_complete_blocks", "mark_shareable_blocks_as_complete")
"""The cache's method that lets others share the blocks of a step, in newer and older releases."""


@dataclass(slots=True, eq=False)
class _LibraryRequest:
    """A turn as the library has it."""

    key: str
    """The request's id. New for each request: the library hangs on a duplicate, and a late
    cancellation would hit the successor."""
    request: EngineRequest
    progress: TransformersProgress
    opened_at: float
    turn: EngineTurn = field(init=False)
    weights: int = 0
    """The version that decoded the last token."""


class TransformersEngine(UpdatableEngine):
    """An engine over `ContinuousBatchingManager`."""

    explain = staticmethod(explain)

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._args = parse_args(config.engine_args)
        self._turns = OpenTurns("transformers")
        self._keys = count()
        self._cached: dict[str, tuple[int, float]] = {}
        """The library's request id → the prompt tokens that were found in the cache, and the time
        of the search, at the start of the prefill. Kept until the first output. Written on the
        library's thread."""
        self._held = 0
        self._stopping = False
        self._batches = -1
        """The number of steps that the library has run."""
        self._manager: Any = None
        self._rows: Any = None
        self._images: Any = None
        self._weights: Any = None
        """`weights.RunningWeights`."""
        self._image_thread = ThreadPoolExecutor(1, "transformers-images")
        self._defaults: Sampling
        """The model's defaults."""
        self._info: EngineInfo

    @override
    async def start(self) -> EngineInfo:
        """Loads the model, starts the library's thread and decodes one token.

        Raises EngineFailed, with the library's message, if any of it fails.
        """
        # The library's thread would not be a daemon, and would keep a process with an exception
        # running forever. Threads inherit this from the thread that starts them.
        try:
            loaded = await in_daemon_thread("transformers-load", self._load)
        except Invalid:
            raise
        except Exception as error:
            raise load_failure(self._config.model, error) from error
        self._manager = loaded.manager
        self._info = loaded.info
        self._defaults = loaded.facts.sampling
        self._rows = loaded.rows
        self._images = loaded.images
        from services.worker.engines.transformers.weights import RunningWeights

        self._weights = RunningWeights(loaded.manager, self._turns, loaded.images)
        self._turns.watch(self._config.watchdog_s, self._check)
        try:
            await decode_trial(self, EngineRequest("start", [0], Sampling(max_tokens=1), []))
        except EngineFailed:
            await self.stop(1.0)
            raise
        return self._info

    @override
    def open(self, request: EngineRequest, sink: Sink) -> EngineTurn:
        key = f"{request.id}#{next(self._keys)}"
        opened = _LibraryRequest(key, request, TransformersProgress(request), time.monotonic())
        turn = self._turns.open(request.id, sink, partial(self._release, opened))
        opened.turn = turn
        self._held += len(request.token_ids)
        if request.images:
            turn.run(self._submit_with_images(opened))
            return turn
        try:
            accepted = self._submit(opened, key, list(request.token_ids))
        except Exception:
            turn.close()
            raise
        if not accepted:
            turn.close()  # the exception reports the death to this turn
            self._turns.die(THREAD_ENDED)
            raise self._turns.died()
        return turn

    @override
    def load(self) -> Load:
        used = None
        if self._info.kv_tokens:
            used = min(1.0, self._held / self._info.kv_tokens)
        return self._turns.load(self._config.slots, self._config.queue_limit, used)

    @override
    def death(self) -> str | None:
        if self._turns.death is None and self._manager is not None and not self._stopping:
            # Not `fatal_error`: it stays None after some of the library's deaths.
            return None if self._manager.is_running() else THREAD_ENDED
        return self._turns.death

    @override
    async def stop(self, grace_s: float) -> None:
        self._stopping = True
        self._turns.stop()
        self._image_thread.shutdown(wait=False, cancel_futures=True)
        if self._manager is not None:
            self._weights.resume()  # a paused thread would not end
            # A soft stop would first decode every open turn to its end.
            stop = self._manager.stop
            await run_for(
                grace_s, "transformers-stop", stop, block=True, timeout=grace_s, hard_stop=True
            )

    @property
    @override
    def weights_version(self) -> int:
        return int(self._weights.version)

    @override
    async def pause(self, *, abort: bool) -> None:
        await self._weights.pause()
        if abort:
            self._turns.abort("the engine was paused")

    @override
    async def resume(self, *, only_own: bool = False) -> None:
        self._weights.resume()  # no other process can pause it

    @override
    async def update_weights(self, source: str, version: int) -> None:
        await self._weights.update(source, version)

    async def _submit_with_images(self, opened: _LibraryRequest) -> None:
        """Submits the request when the features of its images are computed, on a thread of their
        own."""
        from services.worker.engines.transformers.image_features import ImageKey

        request = opened.request
        turn = opened.turn
        run = partial(asyncio.get_running_loop().run_in_executor, self._image_thread)
        features = []
        try:
            for image in request.images:
                features.append(await run(self._images.look, image))
                self._turns.stepped()
            prompt = await run(self._images.prompt, request, features)
            if not self._submit(opened, ImageKey(opened.key, request, prompt), prompt.ids):
                self._turns.die(THREAD_ENDED)
        except TurnwireError as error:
            turn.fail(error)
        except ValueError as error:
            turn.fail(Invalid(str(error), param="messages"))
        except Exception as error:
            turn.fail(EngineFailed(f"transformers, with an image: {type(error).__name__}: {error}"))

    def _submit(self, opened: _LibraryRequest, key: str, ids: list[int]) -> bool:
        """Submits the request under a key, with the ids of its prompt. Returns False if the library
        no longer accepts requests."""
        request = opened.request
        arguments: dict[str, Any] = {}
        if self._args.mode == "sampling":
            sampling = with_defaults(request.sampling, self._defaults)
            seed = None if sampling.logprobs is None else random.randrange(MAX_SEED)
            arguments = row_arguments(sampling, seed)
            if self._rows is not None:
                opened.progress.host_logprobs = self._rows.open(key, request, sampling)
        # The handler first: outputs that come before it land in a shared queue, and the turn would
        # hang.
        self._manager.register_result_handler(key, partial(self._deliver, opened))
        added = self._manager.add_request(
            ids,
            request_id=key,
            # With 0 it would decode a token and log a warning.
            max_new_tokens=max(1, request.sampling.max_tokens or 0),
            streaming=True,
            # -1 is not a token; an empty list would mean the model's own end tokens.
            eos_token_id=sorted(set(request.stop_ids)) or [-1],
            **arguments,
        )
        return added is not None

    def _deliver(self, opened: _LibraryRequest, output: Any) -> None:
        """Passes on an output of the library. An exception would lose the other outputs of the
        step, which are delivered in the same call."""
        turn = opened.turn
        try:
            opened.progress.finished = output.is_finished()
            if output.error is not None:
                self._failed(turn, output.error)
            elif not turn.ended:
                self._put(opened, output)
        except Exception as error:
            turn.fail(EngineFailed(f"{type(error).__name__}: {error}"))

    def _put(self, opened: _LibraryRequest, output: Any) -> None:
        progress = opened.progress
        before = progress.taken
        cached: int | None = None
        waited_s: float | None = None
        if not before:
            cached, searched_at = self._cached.pop(opened.key, (0, None))
            if searched_at is not None:
                waited_s = searched_at - opened.opened_at
        delta = progress.read(output.generated_tokens, output.logprobs, cached)
        delta.waited_s = waited_s
        version = self._weights.version
        if version != opened.weights:
            delta.weights = opened.weights = version
        self._held += progress.taken - before
        opened.turn.put(delta)

    def _failed(self, turn: EngineTurn, error: str) -> None:
        """Handles the error of a request: a refusal, or the end of the thread, which first fails
        each of its requests."""
        if self._is_ending():
            self._turns.die(error)
        else:
            turn.fail(EngineFailed(f"transformers: {error}"))

    def _is_ending(self) -> bool:
        """Returns whether the library's thread has ended or is about to."""
        status = getattr(self._manager, "background_thread_status", None)
        if status is not None and status.local_status >= status.HARD_STOP:
            return True
        has_failed = getattr(self._manager, "fatal_error", None) is not None
        return has_failed or not self._manager.is_running()

    def _release(self, opened: _LibraryRequest) -> None:
        """Releases an ended turn. A cancelled request gets no last output, so that its handler
        would stay forever."""
        key = opened.key
        progress = opened.progress
        self._held -= len(opened.request.token_ids) + progress.taken
        self._cached.pop(key, None)
        if self._rows is not None:
            self._rows.close(key)
        router = self._manager.output_router
        # A turn may end before its images are read.
        if not progress.finished and key in router.result_handlers:
            self._manager.cancel_request(key)
            with router._lock:
                router.result_handlers.pop(key, None)

    def _check(self) -> str | None:
        """Notes steps, which the library does not report. Returns a reason if its thread has ended
        without a report."""
        if self._batches != self._manager.current_batch:
            self._batches = self._manager.current_batch
            self._turns.stepped()
        elif self._weights.is_holding:
            self._turns.stepped()  # a pause is not a hang
        return None if self._manager.is_running() else THREAD_ENDED

    def _load(self) -> LoadedModel:
        """Loads the model and starts the generation thread. Runs on a thread of its own."""
        loaded = load_model(self._config, self._args)
        manager = loaded.manager
        cache = manager.batch_processor.cache
        search = cache.search_prefix_match

        def observed(request_id: str, prompt_ids: list[int]) -> int:
            tokens: int = search(request_id, prompt_ids)
            self._cached[request_id] = (tokens, time.monotonic())
            return tokens

        # Only the search reports how much of a prompt is in the cache.
        cache.search_prefix_match = observed
        _share_last_blocks(manager.batch_processor)
        manager.current_batch = 0
        manager.start()
        return loaded


def _share_last_blocks(processor: Any) -> None:
    """Lets later prompts share the blocks that a request's last step fills.

    The library shares the blocks of a step only of requests that go on. A turn that ends with its
    first token, as each prefill without output does, would leave the last chunk of its prompt to be
    computed again.
    """
    cache = processor.cache
    scheduler = processor.scheduler
    name = next(name for name in _SHARE_BLOCKS if hasattr(cache, name))
    share = getattr(cache, name)

    def share_last(state: Any, filled: Any) -> None:
        is_active = scheduler.active_requests.get(state.request_id) is state
        if filled and is_active:  # else its blocks are already freed
            shared = SimpleNamespace(
                status=None,
                request_id=state.request_id,
                initial_tokens=state.initial_tokens,
                generated_tokens=state.generated_tokens,
            )
            share(shared, filled)

    setattr(cache, name, share_last)
