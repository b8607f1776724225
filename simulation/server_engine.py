"""The engine of simulated workers over a server that lies in ways drawn from the seed.

A script engine is the server. Its output crosses the wire as vLLM's events, which the real reader
and the real judge get. HTTP is not played: what a broken connection or a refusal does to a turn is
done here, as `RemoteEngine` does it.
"""

import asyncio
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from typing_extensions import override

from schemas.control import Load
from schemas.errors import TurnwireError
from schemas.events import FinishReason
from services.worker.engine import (
    Engine,
    EngineDelta,
    EngineDied,
    EngineInfo,
    EngineRequest,
    Handle,
    Sink,
)
from services.worker.engines.remote.answer import AnswerJudge
from services.worker.engines.remote.dialect import ServerRequest
from services.worker.engines.remote.vllm.dialect import VllmDialect
from simulation.engine import SimEngine
from turnwire_tools.script.ticker import now_us

Lie: TypeAlias = Literal["lose", "repeat", "swap", "cut", "wrong id", "end", "break", "silence"]
LIES: Sequence[Lie] = get_args(Lie)
"""About one event each. `cut`: the answer ends here; `end`: so does the turn; `silence`: nothing
comes any more, until the connection breaks."""
REFUSAL_S = 0.5
SILENCE_S = 10.0
"""The longest silence."""
Event: TypeAlias = dict[str, Any]


class ServerEngine(Engine):
    """An engine over a server."""

    def __init__(self, server: SimEngine, random: Random) -> None:
        self._server = server
        self._random = random
        self._chance = 0.0
        self._lies_until_us = 0
        self._vocab_size = 0

    def lie(self, seconds: float, chance: float) -> None:
        """Lets the server lie for a time. `chance`: of an event, and of a request to be refused."""
        self._lies_until_us = now_us() + round(seconds * 1e6)
        self._chance = chance

    def draw_lie(self) -> Lie | None:
        """The lie about one event, if it is one."""
        return self._random.choice(LIES) if self._lies() else None

    def draw_id(self) -> object:
        """A value that no token has."""
        return self._random.choice((self._vocab_size, -1, True, "8", 8.5))

    def draw_silence_s(self) -> float:
        """How long a silence takes."""
        return self._random.random() * SILENCE_S

    @override
    async def start(self) -> EngineInfo:
        info = await self._server.start()
        assert info.vocab_size is not None
        self._vocab_size = info.vocab_size
        return info

    @override
    def open(self, request: EngineRequest, sink: Sink) -> Handle:
        judge = AnswerJudge(request, request.token_ids, self._vocab_size)
        answer = _Answer(self, request, sink, judge)
        if self._lies():
            answer.break_later(REFUSAL_S, "refused the turn: status 503")
        else:
            answer.turn = self._server.open(request, answer)
        return answer

    @override
    def load(self) -> Load:
        return self._server.load()

    @override
    def death(self) -> str | None:
        return self._server.death()

    @override
    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)

    def _lies(self) -> bool:
        return now_us() < self._lies_until_us and self._random.random() < self._chance


class _Answer:
    """The server's answer to one turn: the sink of the server's turn, and the handle of the
    worker's."""

    def __init__(
        self, engine: ServerEngine, request: EngineRequest, sink: Sink, judge: AnswerJudge
    ) -> None:
        self.turn: Handle | None = None
        self._engine = engine
        self._request = request
        self._sink = sink
        self._judge = judge
        self._reader = VllmDialect().reader(request, ServerRequest("", {}))
        self._total = 0
        self._cached: int | None = None
        self._held: Event | None = None
        """The event that another one overtakes."""
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    # -- what the server does

    def put(self, delta: EngineDelta) -> None:
        """Sends a step of the server's turn."""
        if delta.finish is FinishReason.CANCELLED:  # the engine stops
            self._pass_end(delta)
            return
        if delta.cached is not None:
            self._cached = delta.cached
        self._send(self._event(delta))
        if delta.finish is not None:
            details = {"cached_tokens": self._cached}
            usage = self._usage() | {"prompt_tokens_details": details}
            self._send({"choices": [], "usage": usage})
            self._end_stream()

    def fail(self, error: TurnwireError) -> None:
        """Ends the turn with the server's own failure."""
        if not self._ended:
            self._close()
            self._sink.fail(error)

    def close(self) -> None:
        """Closes the connection."""
        if not self._ended:
            self._close()

    def break_later(self, seconds: float, why: str) -> None:
        """Ends the turn after a time in which nothing comes."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self.fail, EngineDied(f"the server {why}"))

    def _event(self, delta: EngineDelta) -> Event:
        ids, rows = list(delta.ids), list(delta.logprobs or ())
        if delta.stop_id is not None:
            ids.append(delta.stop_id)
            rows.append(delta.stop_logprobs or [])
        if self._request.sampling.max_tokens == 0:
            ids = [0]  # vLLM decodes a token at least
        self._total += len(ids)
        content = None if delta.logprobs is None else {"content": [_scored(row) for row in rows]}
        reason = None if delta.finish is None else delta.finish.value
        choice = {"index": 0, "token_ids": ids, "logprobs": content, "finish_reason": reason}
        return {"choices": [choice], "usage": self._usage()}

    def _usage(self) -> Event:
        return {
            "prompt_tokens": len(self._request.token_ids),
            "completion_tokens": self._total,
        }

    # -- what happens on the way

    def _send(self, event: Event) -> None:
        if self._ended or self._timer is not None:
            return
        held, self._held = self._held, None
        for sent in self._changed(event):
            self._receive(sent)
        if held is not None:
            self._receive(held)

    def _changed(self, event: Event) -> list[Event]:
        """What arrives of an event."""
        match self._engine.draw_lie():
            case None:
                return [event]
            case "lose":
                return []
            case "repeat":
                return [event, deepcopy(event)]
            case "swap":
                self._held = event
            case "cut":
                self._end_stream()
            case "wrong id" if event["choices"]:
                event["choices"][0]["token_ids"][-1:] = [self._engine.draw_id()]
                return [event]
            case "end" if event["choices"]:
                event["choices"][0]["finish_reason"] = "stop"
                return [event]
            case "break":
                self.fail(EngineDied("the connection to the server broke"))
            case "silence":
                self.break_later(self._engine.draw_silence_s(), "broke its connection")
            case _:
                return [event]
        return []

    # -- what the engine receives

    def _receive(self, event: Event) -> None:
        if self._ended:
            return
        try:
            delta = self._judge.read(self._reader.read(msgspec.json.encode(event)))
        except TurnwireError as error:
            self.fail(error)
            return
        if delta is not None:
            self._sink.put(delta)

    def _end_stream(self) -> None:
        if self._ended or self._timer is not None:
            return
        if self._held is not None:
            self._receive(self._held)
        try:
            end = self._judge.end()
        except TurnwireError as error:
            self.fail(error)
        else:
            self._pass_end(end)

    def _pass_end(self, delta: EngineDelta) -> None:
        if not self._ended:
            self._close()
            self._sink.put(delta)

    def _close(self) -> None:
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self.turn is not None:
            self.turn.close()


def _scored(row: Sequence[tuple[int, float]]) -> Event:
    """The log probabilities of one token, the chosen one first."""
    ranked = [{"token_id": token, "logprob": logprob} for token, logprob in row]
    return {**ranked[0], "top_logprobs": ranked}
