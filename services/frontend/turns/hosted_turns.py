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
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client import Counter as MetricCounter
from typing_extensions import override

from schemas.control import ModelCard
from schemas.conversation import (
    Call,
    HostedTool,
    Message,
    Part,
    Reasoning,
    Result,
    Text,
    ToolChoice,
)
from schemas.errors import ContextOverflow, EngineFailed, Invalid, TurnwireError
from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Dispatch,
    Failed,
    Finish,
    FinishReason,
    HostedResult,
    HostedResults,
    Prepared,
    TurnEvent,
    Usage,
    blocks_of,
)
from services.frontend.hosted.contract import Provider, ProviderError
from services.frontend.hosted.policy import permitted_sources, refusal
from services.frontend.hosted.tools import add_results, hosted_argument, result_part
from services.frontend.turns.interfaces import (
    Admitted,
    CancelReason,
    OpenTurn,
    TurnGateway,
    TurnSink,
)
from services.runtime.config import FrontendConfig
from services.runtime.observability.telemetry import FilteringBoundLogger

CALL_S = (0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 30, 60)


class HostedTools:
    """Opens answers, and runs the hosted tools of their conversations."""

    def __init__(
        self,
        gateway: TurnGateway,
        provider: Provider,
        config: FrontendConfig,
        registry: CollectorRegistry,
        log: FilteringBoundLogger,
    ) -> None:
        self.gateway = gateway
        self.provider = provider
        self.config = config
        self.log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls = MetricCounter(
            "turnwire_hosted_calls",
            "Calls of hosted tools, by how they ended.",
            ["tool", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "turnwire_hosted_call_seconds",
            "From a call of a provider to its answer.",
            ["tool"],
            registry=registry,
            buckets=CALL_S,
        )

    def count_call(self, tool: str, outcome: str, seconds: float | None) -> None:
        """Counts a call. `outcome`: `ok`, `cancelled` or an error code; `seconds`: None if no
        provider was called."""
        self._calls.labels(tool, outcome).inc()
        if seconds is not None:
            self._seconds.labels(tool).observe(seconds)

    async def open(self, admitted: Admitted, sink: TurnSink, *, turn_id: str) -> OpenTurn:
        """Opens a turn as `TurnGateway.open`; with hosted tools, an answer of several turns."""
        hosted = {
            tool.name: tool.hosted
            for tool in admitted.conversation.tools
            if tool.hosted is not None
        }
        if not hosted:
            return await self.gateway.open(admitted, sink, turn_id=turn_id)
        if admitted.conversation.sampling.return_token_ids:
            message = "return_token_ids: the answer of a tool that this server runs is several turns, with ids of none"
            raise Invalid(message, param="return_token_ids")
        answer = HostedAnswer(self, admitted, hosted, sink, turn_id)
        await answer.open()
        return answer

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task for the work between two turns."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self, drain_turns: Callable[[], Awaitable[None]]) -> None:
        """Returns when no answer is open. If cancelled, ends the answers between two turns, each
        with an error.

        `drain_turns`: returns when no turn of the model is open.
        """
        await drain_turns()
        try:
            while self._tasks:
                await asyncio.wait(self._tasks)
                await drain_turns()
        finally:
            for task in self._tasks:
                task.cancel()

    async def context(self, _app: object) -> AsyncIterator[None]:
        """Closes the provider when the application ends. For `Application.cleanup_ctx`."""
        yield
        await self.provider.close()


class HostedAnswer(OpenTurn, TurnSink):
    """One answer of several turns: the open turn of its client, and the sink of each turn."""

    card: ModelCard
    prepared: Prepared

    def __init__(
        self,
        tools: HostedTools,
        admitted: Admitted,
        hosted: dict[str, HostedTool],
        sink: TurnSink,
        id: str,
    ) -> None:
        self.id = id
        self._tools = tools
        self._admitted = admitted
        self._hosted = hosted
        self._sink = sink
        self._turn: OpenTurn | None = None
        """The open turn. It holds this sink: a cycle, until it ends."""
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self._early_results: list[HostedResult] = []
        """Results of calls of an earlier answer, until the first event."""
        self._round = 0
        self._usage = Usage()
        """Usage of the turns that have ended."""
        self._blocks = 0
        """Blocks of the turns that have ended."""
        self._uses: Counter[str] = Counter()
        self._events: list[TurnEvent] = []
        """Events of the current turn."""

    async def open(self) -> None:
        """Runs calls that the previous answer left open, then opens the first turn. Raises
        TurnwireError."""
        messages = self._admitted.conversation.messages
        calls = unanswered_calls(messages, self._hosted)
        if calls:
            self._early_results = await self._run(calls)
            self._admitted = self._admitted.with_messages(
                add_results(messages, map(result_part, self._early_results))
            )
        self._turn = await self._tools.gateway.open(self._admitted, self, turn_id=self.id)
        self.card, self.prepared = self._turn.card, self._turn.prepared

    @override
    def cancel(self, reason: CancelReason) -> None:
        self._over = True
        if self._task is not None:
            self._task.cancel()
        if self._turn is not None:
            self._turn.cancel(reason)
            self._turn = None

    @override
    def opened(self, prepared: Prepared) -> None:
        if not self._round:
            self._sink.opened(prepared)

    @override
    def push(self, events: list[TurnEvent], tokens: int = 0) -> None:
        if self._over or not events:
            return
        self._events += events
        tokens += self._usage.output  # `tokens` counts the current turn only
        if (
            len(events) == 1
            and type(events[0]) is Delta
            and not self._blocks
            and not self._early_results
        ):
            self._sink.push(events, tokens)
            return
        out: list[TurnEvent] = []
        if self._early_results and not isinstance(events[0], Failed):
            out.append(HostedResults(self._early_results, self.id))
            self._early_results = []
        if isinstance(events[-1], Finish | Failed):
            self._turn = None
        for event in events:
            if isinstance(event, Finish):
                out += self._finish(event)
            elif not isinstance(event, Dispatch) or event.name not in self._hosted:
                out.append(self._renumber(event))
        if out:
            self._sink.push(out, tokens)

    def _renumber(self, event: TurnEvent) -> TurnEvent:
        """Returns an event of the current turn as an event of the answer."""
        if (
            isinstance(event, BlockStart)
            and event.kind == "tool_use"
            and event.name in self._hosted
        ):
            event = replace(event, kind="hosted")
        if self._blocks and isinstance(event, BlockStart | Delta | Dispatch | BlockStop):
            event = replace(event, block=event.block + self._blocks)
        return event

    def _finish(self, finish: Finish) -> Sequence[Finish]:
        """Returns the end of the answer, or starts the work that follows the turn."""
        turn = self._read_turn()
        self._events = []
        self._usage += finish.usage
        self._blocks += finish.blocks
        is_deferred = turn.client_calls and any(
            self._hosted[call.name].deferred for call in turn.calls
        )
        if finish.reason is not FinishReason.STOP or not turn.calls or is_deferred:
            return [self._end(finish)]
        self._task = self._tools.spawn(self._continue(finish, turn))
        return ()

    def _read_turn(self) -> "_EndedTurn":
        turn = _EndedTurn([], [])
        for start, text, stop in blocks_of(self._events):
            if stop is None:
                continue
            if start.kind == "reasoning":
                turn.parts.append(Reasoning(text or None, stop.seal))
            elif start.kind == "text":
                turn.parts += [Text(text)] if text else []
            elif start.name not in self._hosted:
                turn.client_calls = turn.client_calls or stop.complete
            elif stop.complete:
                call = Call(
                    start.call_id or f"{self.id}.{start.block}", start.name or "", text or "{}"
                )
                turn.parts.append(call)
                turn.calls.append(call)
        return turn

    def _end(self, finish: Finish, reason: FinishReason | None = None) -> Finish:
        return replace(
            finish, reason=reason or finish.reason, blocks=self._blocks, usage=self._usage
        )

    async def _continue(self, finish: Finish, turn: "_EndedTurn") -> None:
        """Runs the turn's calls, then opens the next turn. Unless the client cancels, the sink gets
        a terminal event in every case, from here or from the next turn."""
        try:
            last = await self._next(finish, turn)
        except ContextOverflow:
            last = self._end(finish, FinishReason.CONTEXT)
        except TurnwireError as error:
            last = Failed(error.info)
        except asyncio.CancelledError:
            if not self._over:  # the process is ending
                self._push_last(Failed(EngineFailed("this server was shut down").info))
            raise
        except Exception:
            self._tools.log.exception("hosted.answer_failed", turn=self.id)
            last = Failed(EngineFailed("internal error").info)
        if last is not None:
            self._push_last(last)

    def _push_last(self, event: TurnEvent) -> None:
        if not self._over:
            self._over = True
            self._sink.push([event])

    async def _next(self, finish: Finish, turn: "_EndedTurn") -> TurnEvent | None:
        """Returns the event that ends the answer; None if another turn follows."""
        results = await self._run(turn.calls)
        self._round += 1
        turn_id = next_turn_id(self.id, self._round)
        self._sink.push([HostedResults(results, turn_id)])
        if turn.client_calls:
            return self._end(finish)
        last = self._round >= self._tools.config.web_max_rounds
        if last and any(self._hosted[call.name].deferred for call in turn.calls):
            return self._end(finish, FinishReason.PAUSE)
        conversation = self._admitted.conversation
        max_tokens = conversation.sampling.max_tokens
        if max_tokens is not None:
            max_tokens -= finish.usage.output
            if max_tokens <= 0:
                return self._end(finish, FinishReason.LENGTH)
        choice = conversation.tool_choice
        if last:
            choice = ToolChoice("none")
        elif choice.mode in ("any", "tool"):  # the first turn has made the required call
            choice = ToolChoice(parallel=choice.parallel, allowed=choice.allowed)
        messages = add_results(
            [*conversation.messages, Message("assistant", turn.parts)], map(result_part, results)
        )
        self._admitted = self._admitted.next_turn(messages, max_tokens, choice)
        self._turn = await self._tools.gateway.open(self._admitted, self, turn_id=turn_id)
        return None

    async def _run(self, calls: Sequence[Call]) -> list[HostedResult]:
        return await asyncio.gather(*(self._call(call) for call in calls))

    async def _call(self, call: Call) -> HostedResult:
        tool, config = self._hosted[call.name], self._tools.config
        argument = hosted_argument(tool.kind, call.arguments)
        result = HostedResult(call.call_id, call.name, tool.kind, call.arguments)
        self._uses[call.name] += 1
        allowed = config.web_max_calls if tool.max_uses is None else tool.max_uses
        if self._uses[call.name] > allowed or self._uses.total() > config.web_max_calls:
            code: str | None = "max_uses_exceeded"
        else:
            code = refusal(
                tool, argument, self._admitted.conversation, allow_private=config.web_allow_private
            )
        if code is not None:
            self._tools.count_call(tool.kind, code, None)
            return replace(result, error=code)
        loop = asyncio.get_running_loop()
        started, outcome = loop.time(), "cancelled"
        try:
            result = await self._call_provider(result, tool, argument)
            outcome = result.error or "ok"
        finally:
            self._tools.count_call(tool.kind, outcome, loop.time() - started)
        return result

    async def _call_provider(
        self, result: HostedResult, tool: HostedTool, argument: str
    ) -> HostedResult:
        """Returns the result with the provider's sources, or with an error code."""
        config, log = self._tools.config, self._tools.log
        try:
            async with asyncio.timeout(config.web_timeout_s):
                sources = await self._tools.provider.run(tool, argument)
        except (ProviderError, TimeoutError, OSError, ValueError) as error:
            log.warning(
                "hosted.call_failed",
                turn=self.id,
                tool=tool.kind,
                error=str(error) or type(error).__name__,
            )
            return replace(
                result, error=error.code if isinstance(error, ProviderError) else "unavailable"
            )
        sources = permitted_sources(tool, sources, config.web_max_chars)
        if tool.kind == "web_fetch":
            sources = [replace(source, url=argument, age=None) for source in sources[:1]]
            if not sources:
                return replace(result, error="url_not_accessible")
        return replace(result, sources=sources)


@dataclass
class _EndedTurn:
    """What the model wrote in a turn."""

    parts: list[Part]
    """Parts of the message in the next turn's prompt."""
    calls: list[Call]
    """Complete calls of hosted tools."""
    client_calls: bool = False
    """Whether there are complete calls of the client's tools."""


def unanswered_calls(messages: Sequence[Message], hosted: dict[str, HostedTool]) -> list[Call]:
    """Returns the calls of hosted tools in the model's last message that have no result.

    None, if a message other than a tool's follows it.
    """
    count = len(messages)
    at = max(
        (index for index, message in enumerate(messages) if message.role == "assistant"),
        default=count,
    )
    results = messages[at + 1].parts if at + 1 < count and messages[at + 1].role == "tool" else []
    if at == count or (not results and at + 1 < count):
        return []
    done = {part.call_id for part in results if isinstance(part, Result)}
    calls = [part for part in messages[at].parts if isinstance(part, Call)]
    return [call for call in calls if call.name in hosted and call.call_id not in done]


def next_turn_id(id: str, number: int) -> str:
    """Makes the id of a further turn of an answer: 24 hexadecimal digits, like the id of a first
    turn."""
    return hashlib.blake2b(f"{id}/{number}".encode(), digest_size=12).hexdigest()
