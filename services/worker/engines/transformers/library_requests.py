"""Has the library's manager decode requests, and passes its outputs on to their turns."""

import asyncio
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from schemas.errors import EngineFailed, Invalid, TurnwireError
from services.tokenization.model_files import with_defaults
from services.worker.engine import EngineRequest, Sink
from services.worker.engines.open_turns import EngineTurn, OpenTurns
from services.worker.engines.transformers.adapter import (
    MAX_SEED,
    EngineArgs,
    TransformersProgress,
    row_arguments,
)
from services.worker.engines.transformers.loader import LoadedModel

THREAD_ENDED = "the generation thread has ended"


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


class LibraryRequests:
    """The requests that the library has or gets."""

    def __init__(
        self, model: LoadedModel, args: EngineArgs, turns: OpenTurns, weights: Any
    ) -> None:
        """`weights`: `weights.RunningWeights`, a module that needs torch."""
        self._manager = model.manager
        self._rows = model.rows
        self._images = model.images
        self._defaults = model.facts.sampling
        self._is_sampled = args.mode == "sampling"
        self._turns = turns
        self._weights = weights
        self._keys = count()
        self._searches: dict[str, tuple[int, float]] = {}
        """The library's request id → the prompt tokens that were found in the cache, and the time
        of the search, at the start of the prefill. Kept until the first output. Written on the
        library's thread."""
        self._image_thread = ThreadPoolExecutor(1, "transformers-images")
        self.tokens = 0
        """The tokens of prompts and outputs of the open turns."""
        self._record_searches()

    def open(self, request: EngineRequest, sink: Sink) -> EngineTurn:
        """Opens a turn. Raises as `Engine.open`."""
        key = f"{request.id}#{next(self._keys)}"
        opened = _LibraryRequest(key, request, TransformersProgress(request), time.monotonic())
        turn = self._turns.open(request.id, sink, partial(self._release, opened))
        opened.turn = turn
        self.tokens += len(request.token_ids)
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

    def stop(self) -> None:
        """Drops the images that wait."""
        self._image_thread.shutdown(wait=False, cancel_futures=True)

    def _record_searches(self) -> None:
        """Notes how much of a prompt is in the cache: only the library's search reports it."""
        cache = self._manager.batch_processor.cache
        search = cache.search_prefix_match

        def observed(request_id: str, prompt_ids: list[int]) -> int:
            tokens: int = search(request_id, prompt_ids)
            self._searches[request_id] = (tokens, time.monotonic())
            return tokens

        cache.search_prefix_match = observed

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
        if self._is_sampled:
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
            cached, searched_at = self._searches.pop(opened.key, (0, None))
            if searched_at is not None:
                waited_s = searched_at - opened.opened_at
        delta = progress.read(output.generated_tokens, output.logprobs, cached)
        delta.waited_s = waited_s
        version = self._weights.version
        if version != opened.weights:
            delta.weights = opened.weights = version
        self.tokens += progress.taken - before
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
        self.tokens -= len(opened.request.token_ids) + progress.taken
        self._searches.pop(key, None)
        if self._rows is not None:
            self._rows.close(key)
        router = self._manager.output_router
        # A turn may end before its images are read.
        if not progress.finished and key in router.result_handlers:
            self._manager.cancel_request(key)
            with router._lock:
                router.result_handlers.pop(key, None)
