"""Ends a turn's reasoning at its budget: stops the engine, ends the thought in the turn's stream,
and has the engine continue from there.

The engines know nothing of budgets.
"""

import asyncio

from schemas.errors import TurnwireError
from schemas.events import FinishReason
from services.worker.engine import Engine, EngineDelta
from services.worker.engine_requests import DecodingPlan, EngineRequests
from services.worker.observer import WorkerObserver
from services.worker.output.decoding import Decoding


class BudgetedTurn:
    """The sink of one turn with a budget of reasoning tokens."""

    def __init__(
        self,
        decoding: Decoding,
        plan: DecodingPlan,
        *,
        engine: Engine,
        requests: EngineRequests,
        observer: WorkerObserver,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`plan`: has a counter."""
        assert plan.counter is not None
        self._decoding = decoding
        self._counter = plan.counter
        self._first = plan.first
        self._max_tokens = plan.request.sampling.max_tokens or 0
        """The turn's limit of output, with that of earlier attempts."""
        self._engine = engine
        self._requests = requests
        self._observer = observer
        self._loop = loop
        self._held_back = EngineDelta()
        """The last tokens, which are beyond the budget if they are not a closer."""
        self._continued = False

    def fail(self, error: TurnwireError) -> None:
        """Ends the stream with the engine's error."""
        self._decoding.fail(error)

    def put(self, delta: EngineDelta) -> None:
        """Adds an engine step's result to the stream, or ends the thought."""
        if self._continued:
            # The engine's prompt is now the turn so far, so that these are not the turn's own.
            delta.cached = None
            delta.waited_s = None
        new_ids = delta.ids
        held_back = len(self._held_back.ids)
        if delta.weights is not None:
            stream = self._decoding.stream
            stream.weights.begin(len(stream.ids) + held_back, delta.weights)
            delta.weights = None  # the tokens held back may have others
        self._join(delta)

        counter = self._counter
        for count, token in enumerate(new_ids, held_back + 1):
            counter.count(token)
            if counter.is_certainly_over:
                self._end_thought(delta, max(count - counter.over, 0))
                return

        self._hold_back(delta, counter.over if delta.finish is None else 0)
        if delta.ids or delta.cached is not None or delta.finish is not None:
            self._decoding.put(delta)

    def _join(self, delta: EngineDelta) -> None:
        """Puts the tokens that were held back before those of a step."""
        held_back = self._held_back
        if delta.logprobs is not None or held_back.logprobs:
            rows = delta.logprobs or [[] for _ in delta.ids]
            delta.logprobs = (held_back.logprobs or []) + rows
        delta.ids = held_back.ids + delta.ids

    def _hold_back(self, delta: EngineDelta, count: int) -> None:
        """Takes the last `count` tokens out of a step, or all that it has."""
        end = max(len(delta.ids) - count, 0)
        self._held_back = EngineDelta(delta.ids[end:])
        delta.ids = delta.ids[:end]
        if delta.logprobs is not None:
            self._held_back.logprobs = delta.logprobs[end:]
            delta.logprobs = delta.logprobs[:end]

    def _end_thought(self, delta: EngineDelta, allowed: int) -> None:
        """Stops the engine, and adds `allowed` tokens of a step and the end of the thought."""
        self._decoding.close()
        self._held_back = EngineDelta()
        self._continued = True

        room = self._max_tokens - len(self._decoding.stream.ids) - allowed
        end = self._counter.end_thought()[:room]
        last = EngineDelta(delta.ids[:allowed] + end, cached=delta.cached, waited_s=delta.waited_s)
        if delta.logprobs:
            # The model did not choose the tokens of the end.
            last.logprobs = [*delta.logprobs[:allowed], *([] for _ in end)]
        is_full = len(end) == room
        if is_full:
            last.finish = FinishReason.LENGTH
        self._decoding.put(last)
        if not is_full:
            self._loop.call_soon(self._continue)  # when the engine's step is over

    def _continue(self) -> None:
        """Has the engine continue after all ids of the stream, as after the death of a worker."""
        decoding = self._decoding
        if decoding.ended:
            return
        try:
            request = self._requests.rest(self._first, decoding.stream.ids, self._counter)
            decoding.handle = self._engine.open(request, self)
        except Exception as error:
            what = "the turn could not be continued"
            decoding.fail(self._observer.failure(decoding.stream.turn, error, what))
