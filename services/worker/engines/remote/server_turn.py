"""Decodes one turn on a server: sends its request and reads the answer. What ends it early decides
how it goes on.

- The server refuses the request: the turn fails, or goes on elsewhere if another attempt may help.
- Its answer is broken: the turn fails, since its tokens could be wrong.
- The connection breaks: the turn goes on, elsewhere or here.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from schemas.errors import (
    ENGINE_DIED,
    RETRY_AFTER_S,
    EngineFailed,
    Invalid,
    NotFound,
    Overloaded,
    TooLarge,
    TurnwireError,
)
from services.tokenization.model_files import ModelFacts
from services.worker.engine import EngineDied, EngineRequest
from services.worker.engines.open_turns import EngineTurn
from services.worker.engines.remote.answer import AnswerJudge
from services.worker.engines.remote.dialect import ServerFacts, ServerRequest
from services.worker.engines.remote.event_reader import AnswerChunk
from services.worker.engines.remote.expert_files import ExpertFiles
from services.worker.engines.remote.http import (
    MAX_EVENT_BYTES,
    MAX_EXPERTS_BYTES,
    HttpRefusal,
    Unreachable,
)
from services.worker.engines.remote.server_watch import ServerWatch
from services.worker.engines.remote.server_weights import ServerWeights

BUSY_S = 5.0
"""How long a turn is sent again to a server that refuses it for now."""
RETRY_S = 0.5
_BUSY = frozenset((408, 425, 429, 502, 503, 504))
"""Statuses of a server without room, or of a proxy while its server starts."""
_FULL = frozenset((429, 503))
_WRONG = frozenset((400, 422))
_NOT_FOUND = 404
_TOO_LARGE = 413


class ServerTurn:
    """One turn on a server."""

    def __init__(
        self,
        watch: ServerWatch,
        request: EngineRequest,
        ids: list[int],
        facts: ServerFacts,
        model: ModelFacts,
        *,
        weights: ServerWeights,
        experts: ExpertFiles | None,
    ) -> None:
        """`ids`, `facts`, `model` and errors: those of `Dialect.generate`."""
        self._watch = watch
        self._request = request
        self._ids = ids
        self._facts = facts
        self._model = model
        self._call = self._make_call()
        self._weights = weights
        self._expert_files = experts if request.sampling.max_tokens else None
        self._has_begun = False
        """Whether the server has sent a part of the answer."""

    async def run(self, turn: EngineTurn, judge: AnswerJudge) -> None:
        """Passes the answer to the turn."""
        try:
            await self._pass_on(turn, judge)
        except Exception as error:
            await self._fail(turn, self._error(error))

    async def _pass_on(self, turn: EngineTurn, judge: AnswerJudge) -> None:
        weights = await self._weights.begin_turn()
        stream = self._watch.add(turn)
        experts = ""
        try:
            async with aclosing(self._chunks()) as chunks:
                async for chunk in chunks:
                    self._watch.record_chunk(stream)
                    delta = judge.read(chunk)
                    if delta is not None:
                        weights.note(delta)
                        turn.put(delta)
                    if chunk.end is not None and self._expert_files is not None:
                        experts = await self._expert_files.write(self._request.id, chunk.experts)
                    if chunk.closes:
                        break
        finally:
            self._watch.remove(stream)
        last = judge.end()
        last.experts = experts
        weights.note(last)
        turn.put(last)

    async def _chunks(self) -> AsyncGenerator[AnswerChunk, None]:
        """Yields the chunks of the answer, and ends the turn on the server where they are not read
        to the end.

        A server that is busy is asked again for `BUSY_S`: it refuses by a status, or in place of
        the first chunk.
        """
        end = asyncio.get_running_loop().time() + BUSY_S
        async with self._watch.dialect.streaming(self._watch.http):
            while True:
                try:
                    async with aclosing(self._answer()) as answer:
                        async for chunk in answer:
                            yield chunk
                    return
                except HttpRefusal as refusal:
                    is_over = self._has_begun or asyncio.get_running_loop().time() > end
                    if is_over or refusal.status not in _BUSY:
                        raise
                await asyncio.sleep(RETRY_S)
                # SGLang aborts the id of an answer that has ended once more, two seconds later.
                self._call = self._make_call()

    def _make_call(self) -> ServerRequest:
        dialect = self._watch.dialect
        return dialect.generate(self._request, self._ids, self._facts, self._model)

    async def _answer(self) -> AsyncGenerator[AnswerChunk, None]:
        """Yields the chunks of one attempt."""
        call = self._call
        reader = self._watch.dialect.reader(self._request, call)
        closes = self._watch.dialect.closes_streams
        most = MAX_EVENT_BYTES if self._expert_files is None else MAX_EXPERTS_BYTES
        events = self._watch.http.events(call.path, call.body, closes=closes, max_bytes=most)
        try:
            async with aclosing(events):
                async for data in events:
                    chunk = reader.read(data)
                    self._has_begun = True
                    yield chunk
        except HttpRefusal:
            raise
        except BaseException:
            # Also where something in between keeps the connection.
            self._watch.abort(call)
            raise

    def _error(self, error: Exception) -> TurnwireError:
        """The error of a turn, for what has ended it."""
        if isinstance(error, TurnwireError):
            return error
        if isinstance(error, Unreachable):
            return EngineDied(f"the connection to the inference server broke: {error}")
        if not isinstance(error, HttpRefusal):
            return EngineFailed(f"{self._watch.dialect.name}: {error!r}")
        return self._refusal(error)

    def _refusal(self, error: HttpRefusal) -> TurnwireError:
        """The error of a turn that the server refused. Another worker may take one that it may take
        later."""
        if error.status in _WRONG:
            return Invalid(f"the inference server refused the request: {error}")
        if error.status == _TOO_LARGE:
            return TooLarge(f"the inference server takes no request of this size: {error}")
        if error.status == _NOT_FOUND and self._request.adapter:  # it was unloaded a moment ago
            return NotFound(f"model: {self._request.adapter}")
        if error.status in _FULL:
            full = f"the inference server is full: {error}"
            return Overloaded(full, code=ENGINE_DIED, retry_after_s=RETRY_AFTER_S)
        if error.status in _BUSY or error.status == _NOT_FOUND or error.status >= 500:
            return EngineDied(f"the inference server refused the turn: {error}")
        return EngineFailed(f"the inference server refused the turn: {error}")

    async def _fail(self, turn: EngineTurn, error: TurnwireError) -> None:
        """Ends a turn. If the error may be that of a server that dies, the watch looks first: a
        turn that is to go on must not be sent to a server that is dead."""
        if isinstance(error, EngineDied):
            await self._watch.look(error)
        turn.fail(error)
