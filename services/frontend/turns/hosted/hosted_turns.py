"""Runs hosted tools between two turns of the model: a loop over turns that make one answer for the
client.

    client ← sink ← HostedAnswer ← turn 1: text, call of web_search, Finish
                         │         provider: results
                         └──────── turn 2, with the call and its results in its prompt: text, Finish

The sink gets one answer: the numbers of blocks continue, the calls are blocks of kind `hosted`,
`HostedResults` comes between the turns, and one Finish has the usage of all turns.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from typing_extensions import override

from schemas.conversation import HostedTool, Message
from schemas.errors import ContextOverflow, EngineFailed, Invalid, TurnwireError
from schemas.events import (
    Delta,
    Failed,
    Finish,
    FinishReason,
    HostedResult,
    HostedResults,
    LastEvent,
    Prepared,
    TurnEvent,
)
from services.frontend.content.added_results import add_results
from services.frontend.content.hosted_tools import result_part
from services.frontend.hosted.calls import AnswerCalls, CallRunner
from services.frontend.hosted.contract import Provider
from services.frontend.turns.hidden.builder import HiddenTurnsBuilder
from services.frontend.turns.hidden.memory import HiddenMemory
from services.frontend.turns.hosted.answer_blocks import AnswerBlocks
from services.frontend.turns.hosted.ended_turn import AnswerProgress, EndedTurn, unanswered_calls
from services.frontend.turns.hosted.rules import HostedRules
from services.frontend.turns.interfaces import (
    Admitted,
    CancelReason,
    OpenTurn,
    TurnGateway,
    TurnSink,
)
from services.runtime.config.frontend import FrontendConfig
from services.runtime.observability.telemetry import FilteringBoundLogger


class HostedToolGateway(TurnGateway):
    """Opens answers, and runs the hosted tools of their conversations."""

    def __init__(
        self,
        gateway: TurnGateway,
        provider: Provider,
        config: FrontendConfig,
        registry: CollectorRegistry,
        log: FilteringBoundLogger,
        *,
        hidden: HiddenMemory,
    ) -> None:
        self.max_rounds = config.web_max_rounds
        self.runner = CallRunner(provider, config, registry, log)
        self.log = log
        self._gateway = gateway
        self._hidden = hidden
        self._provider = provider
        self._tasks: set[asyncio.Task[None]] = set()

    @override
    async def open(self, admitted: Admitted, sink: TurnSink, *, turn_id: str) -> OpenTurn:
        """Opens a turn as `TurnGateway.open`; with hosted tools, an answer of several turns."""
        hosted = {
            tool.name: tool.hosted
            for tool in admitted.conversation.tools
            if tool.hosted is not None
        }
        if not hosted:
            return await self._gateway.open(admitted, sink, turn_id=turn_id)
        if admitted.conversation.sampling.return_token_ids:
            raise Invalid(
                "return_token_ids: the answer of a tool that this server runs is several turns, "
                "with ids of none",
                param="return_token_ids",
            )
        return await HostedAnswer(self, admitted, hosted, sink, turn_id).open()

    async def open_turn(self, admitted: Admitted, sink: TurnSink, turn_id: str) -> OpenTurn:
        """Opens one turn of an answer. Raises TurnwireError."""
        return await self._gateway.open(admitted, sink, turn_id=turn_id)

    async def remember(self, built: HiddenTurnsBuilder, owner: str | None, answer: str) -> None:
        """Remembers what is hidden of what the client will send back as one message. `answer`: the
        id of the answer, for the log."""
        shown = Message("assistant", built.shown)
        try:
            await self._hidden.keep(built.before, shown, built.hidden, owner)
        except Exception:  # the client gets its answer
            self.log.exception("hosted.not_remembered", turn=answer)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task for the work between two turns."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @override
    async def drain(self) -> None:
        """Returns when no answer is open. If cancelled, ends the answers between two turns, too."""
        await self._gateway.drain()
        try:
            while self._tasks:
                await asyncio.wait(self._tasks)
                await self._gateway.drain()
        finally:
            for task in self._tasks:
                task.cancel()

    async def context(self, _app: object) -> AsyncIterator[None]:
        """Closes the provider when the application ends. For `Application.cleanup_ctx`."""
        yield
        await self._provider.close()


class HostedAnswer(TurnSink):
    """One answer of several turns, and the sink of each.

    `open` opens the first turn. `push` gets the events of every turn, and `_end_turn` its end: the
    answer ends, too, if there is nothing left to do; else a task (`_continue`) runs the turn's
    calls, remembers what is hidden, and opens the next turn or ends the answer.
    """

    def __init__(
        self,
        gateway: HostedToolGateway,
        admitted: Admitted,
        hosted: dict[str, HostedTool],
        sink: TurnSink,
        id: str,
    ) -> None:
        self.id = id
        self._gateway = gateway
        self._log = gateway.log
        self._admitted = admitted
        """The request of the current turn."""
        self._hosted = hosted
        self._rules = HostedRules(hosted, gateway.max_rounds)
        self._calls = AnswerCalls(gateway.runner, hosted, id)
        self._sink = sink
        self._turn: OpenTurn | None = None
        """The open turn. It holds this sink: a cycle, until it ends."""
        self._task: asyncio.Task[None] | None = None
        """Runs calls and opens the next turn."""
        self._is_over = False
        self._early_results: list[HostedResult] = []
        """Results of calls of an earlier answer, until the first event."""
        self._progress = AnswerProgress(hosted, id)
        self._blocks = AnswerBlocks(hosted)
        self._hidden = HiddenTurnsBuilder(hosted, admitted.conversation)

    async def open(self) -> OpenTurn:
        """Runs calls that the previous answer left open, then opens the first turn. Raises
        TurnwireError."""
        conversation = self._admitted.conversation
        calls = unanswered_calls(conversation.messages, self._hosted)
        if calls:
            self._early_results = await self._calls.run(calls, conversation)
            results = map(result_part, self._early_results)
            messages = add_results(conversation.messages, results)
            self._admitted = self._admitted.with_conversation(
                replace(conversation, messages=messages)
            )
        turn = await self._gateway.open_turn(self._admitted, self, self.id)
        self._turn = turn
        return OpenTurn(turn.prepared, self.cancel)

    def cancel(self, reason: CancelReason) -> None:
        """Stops the answer as `OpenTurn.cancel`."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel(reason)
        if self._turn is not None:
            self._turn.cancel(reason)
            self._turn = None

    @override
    def opened(self, prepared: Prepared) -> None:
        if not self._progress.ended:
            self._sink.opened(prepared)

    @override
    def push(self, events: list[TurnEvent], tokens: int = 0) -> None:
        if self._is_over or not events:
            return
        self._progress.events += events
        tokens += self._progress.usage.kept  # `tokens` counts the current turn only
        out = events
        if not self._is_plain_delta(events):
            out = self._translate(events)
        if out:
            self._sink.push(out, tokens)

    def _is_plain_delta(self, events: list[TurnEvent]) -> bool:
        """Returns whether events are one delta that the client gets unchanged, as for most
        tokens."""
        if len(events) != 1 or type(events[0]) is not Delta:
            return False
        return self._blocks.are_those_of_turn and not self._early_results

    def _translate(self, events: list[TurnEvent]) -> list[TurnEvent]:
        """Returns events of the current turn as events of the answer."""
        out: list[TurnEvent] = []
        if self._early_results and not isinstance(events[0], Failed):
            out.append(HostedResults(self._early_results, self.id))
            self._early_results = []
        for event in map(self._blocks.translate, events):
            if event is not None:
                out.append(event)

        last = events[-1]
        if isinstance(last, LastEvent):
            self._turn = None
        if isinstance(last, Finish):
            out += self._end_turn(last)
        return out

    def _end_turn(self, finish: Finish) -> Sequence[Finish]:
        """Returns the end of the answer; none if a task ends or continues it."""
        turn = self._progress.end_turn(finish)
        self._blocks.end_turn(finish)
        runs_calls = self._rules.runs_calls(turn, self._progress.ended)
        if not runs_calls:
            self._hidden.end(turn.parts)
            if not self._hidden:
                return [self._end(turn, finish.reason)]
        self._task = self._gateway.spawn(self._continue(turn, runs_calls))
        return ()

    def _end(self, turn: EndedTurn, reason: FinishReason) -> Finish:
        """Returns the end of the answer, which ends with this turn."""
        return self._rules.answer_end(
            turn.finish, reason, blocks=self._blocks.count, usage=self._progress.usage
        )

    async def _continue(self, turn: EndedTurn, runs_calls: bool) -> None:
        """Opens the next turn, or ends the answer. Unless the client cancels, the sink gets a
        terminal event in every case, from here or from the next turn."""
        last: LastEvent | None = None if runs_calls else self._end(turn, turn.finish.reason)
        try:
            if runs_calls:
                last = await self._run_calls(turn)
            if last is not None:
                await self._remember()
        except ContextOverflow:
            last = self._end(turn, FinishReason.CONTEXT)
        except TurnwireError as error:
            last = Failed(error.info)
        except asyncio.CancelledError:
            # the process is ending, if the client has not cancelled
            self._push_last(last or Failed(EngineFailed("this server was shut down").info))
            raise
        except Exception:
            self._log.exception("hosted.answer_failed", turn=self.id)
            last = Failed(EngineFailed("internal error").info)
        if last is not None:
            self._push_last(last)

    def _push_last(self, event: LastEvent) -> None:
        if not self._is_over:
            self._is_over = True
            self._sink.push([event])

    async def _run_calls(self, turn: EndedTurn) -> Finish | None:
        """Runs the turn's calls, then opens the next turn. Returns the end of the answer instead,
        if it has one now. Raises TurnwireError."""
        results = await self._calls.run(turn.calls, self._admitted.conversation)
        ended = self._progress.ended
        turn_id = next_turn_id(self.id, ended)
        shown = [result for result in results if not self._hosted[result.name].hidden]
        self._sink.push([HostedResults(shown, turn_id)])
        self._hidden.add(next_turn_id(self.id, ended - 1), turn.parts, results)
        reason = self._rules.reason_to_end(turn, ended, self._admitted.conversation)
        if reason is not None:
            return self._end(turn, reason)

        self._admitted = self._next_request(turn, results)
        if self._hidden.ends:
            await self._remember()
        self._turn = await self._gateway.open_turn(self._admitted, self, turn_id)
        return None

    async def _remember(self) -> None:
        """Remembers what is hidden of the turns up to now."""
        built = self._hidden
        admitted = self._admitted
        self._hidden = HiddenTurnsBuilder(self._hosted, admitted.conversation)
        if built:
            await self._gateway.remember(built, admitted.caller.owner, self.id)

    def _next_request(self, turn: EndedTurn, results: Sequence[HostedResult]) -> Admitted:
        """Returns the request for the turn after a turn's calls."""
        conversation = self._admitted.conversation
        max_tokens = conversation.sampling.max_tokens
        if max_tokens is not None:
            max_tokens -= turn.finish.usage.output

        choice = self._rules.next_choice(turn, self._progress.ended, conversation)
        messages = [*conversation.messages, Message("assistant", turn.parts)]
        messages = add_results(messages, map(result_part, results))
        return self._admitted.next_turn(messages, max_tokens, choice)


def next_turn_id(id: str, number: int) -> str:
    """Makes the id of a further turn of an answer: 24 hexadecimal digits, like the id of a first
    turn. `number`: of the turns before it."""
    if number == 0:
        return id
    return hashlib.blake2b(f"{id}/{number}".encode(), digest_size=12).hexdigest()
