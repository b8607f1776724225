"""Runs turns for every API and every kind of answer: HTTP streams and documents
(`apis.shared.mount`), background responses, WebSocket lanes, and summaries that this server reads
itself.

The first byte is sent when the gateway has opened every turn, so that a refusal gets an error
status. A later failure is the stream's last event. However a run ends (hang-up, slow reader,
timeout), turns that have not finished are cancelled, and the caller is charged.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from schemas.control import ModelCard
from schemas.conversation import Conversation
from schemas.errors import ContextOverflow, ErrorKind, TimedOut, TurnwireError
from schemas.events import TurnEvent
from services.frontend.http.bodies import run_in_thread_if
from services.frontend.http.middleware import RequestContext
from services.frontend.turns.admission import Admission
from services.frontend.turns.answer import OnEnd, OpenAnswer, Shorten, TurnRecord
from services.frontend.turns.interfaces import Admitted, AnswerInfo, OpenTurn, ParsedRequest
from services.frontend.turns.metrics import FrontendMetrics
from services.frontend.turns.shortening import shorten_conversation
from services.frontend.turns.sinks import ChoiceSink, DocumentSink, Flusher, StreamSink
from services.guides.promises import not_enforced
from services.runtime.config import FrontendConfig
from services.runtime.observability.telemetry import FilteringBoundLogger

AnswerSink: TypeAlias = StreamSink[Any] | DocumentSink
S = TypeVar("S", bound=AnswerSink)


class TurnRunner:
    """Runs turns, for all APIs of a frontend."""

    def __init__(
        self,
        admission: Admission,
        config: FrontendConfig,
        metrics: FrontendMetrics,
        log: FilteringBoundLogger,
    ) -> None:
        self.admission = admission
        self.config = config
        self.metrics = metrics
        self.log = log
        self.flusher = Flusher(log)
        """Flushes all streams of this server."""

    async def read(
        self,
        conversation: Conversation,
        context: RequestContext,
        dialect: str,
        shorten: Shorten | None = None,
    ) -> Sequence[TurnEvent]:
        """Returns the events of a whole turn that this server reads itself before it answers the
        request.

        If cancelled, cancels the turn. Raises TurnwireError if the turn cannot start or fails.
        """
        answer = self.answer(context, dialect, shorten=shorten)

        async def begin() -> tuple[Sequence[Admitted], DocumentSink]:
            return await self._admit([conversation], answer), DocumentSink(answer)

        answer.turn_id = secrets.token_hex(12)
        try:
            sink = await self.run(answer, begin)
        finally:
            self.log_answer("summary", answer)
        (events,) = sink.events
        return events

    def answer(
        self,
        context: RequestContext,
        dialect: str,
        *,
        started: float | None = None,
        on_end: OnEnd | None = None,
        shorten: Shorten | None = None,
    ) -> OpenAnswer:
        """Makes an answer that started at `started` (the loop's time), by default now."""
        loop = asyncio.get_running_loop()
        started = loop.time() if started is None else started
        record = TurnRecord(self.metrics, started, loop.time)
        deadline = started + self.config.request_timeout_s
        return OpenAnswer(context, dialect, record, deadline, context.id, on_end, shorten)

    async def run(
        self, answer: OpenAnswer, begin: Callable[[], Awaitable[tuple[Sequence[Admitted], S]]]
    ) -> S:
        """Runs one answer to its end. If cancelled, cancels its turns.

        Args:
            begin: admits the request. Returns one conversation for each choice of the answer, and
                its sink.

        Raises TurnwireError, for a stream only before its first byte: later errors are its last
        event.
        """
        record, sink = answer.record, None
        try:
            try:
                async with asyncio.timeout_at(answer.deadline):
                    admitted, sink = await begin()
                    turns = await self._open(admitted, sink, answer)
                    answer.turns = turns
                    if (images := admitted[0].images) is not None:
                        images.release()
                    record.prompt_tokens = sum(
                        turn.prepared.prompt_tokens for turn in turns[:: record.each]
                    )
                    sink.begin([turn.prepared for turn in turns])
            except TimeoutError:
                if sink is None or not sink.started:
                    raise _timed_out() from None
            await self._finish(answer, sink)
            return sink
        except TurnwireError as error:
            record.outcome = record.outcome or str(error.info.kind)
            raise
        except (asyncio.CancelledError, ConnectionError):
            record.outcome = record.outcome or "hangup"
            raise
        finally:
            if sink is not None:
                if not sink.ended:
                    answer.cancel("hangup")
                answer.turns = ()  # each holds the sink, which holds the answer: a cycle
                sink.stop()
            record.outcome = record.outcome or "internal"
            record.close(answer.dialect)
            if answer.context.caller is not None:
                answer.context.caller.spend(record.tokens)

    async def _finish(self, answer: OpenAnswer, sink: AnswerSink) -> None:
        """Waits for the end of the answer, until the deadline."""

        def on_timeout() -> None:
            if not sink.ended:
                answer.record.outcome = str(ErrorKind.TIMED_OUT)
                answer.cancel("timeout")
                sink.give_up(_timed_out().info)

        timer = asyncio.get_running_loop().call_at(answer.deadline, on_timeout)
        try:
            await sink.finish()
        finally:
            timer.cancel()

    async def _open(
        self, admitted: Sequence[Admitted], sink: AnswerSink, answer: OpenAnswer
    ) -> list[OpenTurn]:
        """Opens every turn, or none."""
        open_turn, turn_id = self.admission.open, answer.turn_id
        if len(admitted) == 1:
            try:
                return [await open_turn(admitted[0], sink, turn_id=turn_id)]
            except ContextOverflow as overflow:
                if answer.shorten is None:
                    raise
                shorter = await answer.shorten(admitted[0].conversation, overflow)
            return [
                await open_turn(admitted[0].with_messages(shorter.messages), sink, turn_id=turn_id)
            ]
        tasks: list[asyncio.Task[OpenTurn]] = []
        try:
            for i, choice in enumerate(admitted):
                opening = open_turn(choice, ChoiceSink(sink, i), turn_id=f"{turn_id}c{i}")
                tasks.append(asyncio.create_task(opening))
                await asyncio.sleep(0)  # each may encode megabytes
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            for turn in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(turn, BaseException):
                    turn.cancel("hangup")
            raise

    def model(self, conversation: Conversation, context: RequestContext) -> ModelCard:
        """Returns the request's model. It is looked up once, for the first of the request's
        conversations. Raises as `Admission.resolve`."""
        if context.card is None:
            context.card = self.admission.resolve(conversation.model, context.caller, conversation)
        return context.card

    async def count(self, conversation: Conversation, context: RequestContext) -> int:
        """Returns the exact number of prompt tokens for the request's model. Raises as
        `Admission.count`."""
        return await self.admission.count(
            conversation, context.caller, self.model(conversation, context)
        )

    async def report(self, ask: ParsedRequest, context: RequestContext) -> None:
        """Records for headers and log what the answer will lack. Raises as `model`."""
        context.note(ask.notes)
        first = ask.conversations[0]
        card = self.model(first, context)
        context.not_enforced = await run_in_thread_if(
            False, lambda: not_enforced(first, card.features, card.family)
        )

    async def admit(self, ask: ParsedRequest, answer: OpenAnswer) -> list[Admitted]:
        """Admits the conversation of every choice. Raises as `Admission.admit`."""
        admitted = await self._admit(ask.conversations, answer)
        await self.report(ask, answer.context)  # examines schemas, which have a limit now
        return admitted

    async def _admit(
        self, conversations: Sequence[Conversation], answer: OpenAnswer
    ) -> list[Admitted]:
        context = answer.context
        if conversations[0].summary:  # a compaction must not fail because of what it removes
            answer.shorten = partial(
                shorten_conversation, count=partial(self.count, context=context)
            )
        card = self.model(conversations[0], context)
        answer.record.each = len(conversations) // len({id(one.prompt) for one in conversations})
        answer.record.opened(card.name, conversations[0].client)
        first = await self.admission.admit(conversations[0], context.caller, card)
        return [first, *map(first.with_choice, conversations[1:])]

    def log_answer(self, event: str, answer: OpenAnswer, **fields: object) -> None:
        """Logs an answer that the access log does not have."""
        context, record = answer.context, answer.record
        ids = {"request": context.request_id, "outcome": record.outcome, "tenant": context.tenant}
        self.log.info(event, **ids, **record.fields(), **fields)

    def reply(
        self,
        context: RequestContext,
        conversation: Conversation,
        *,
        dispatch: bool = False,
        dispatch_reasoning: bool = False,
    ) -> AnswerInfo:
        """Makes the ids and times of an answer. Raises as `model` where the request names no model."""
        model = conversation.model or self.model(conversation, context).name
        return AnswerInfo(
            context.id,
            context.request_id,
            model,
            int(time.time()),
            dispatch,
            dispatch_reasoning,
            now=time.time,
        )


def _timed_out() -> TimedOut:
    return TimedOut("The request took longer than this server allows.")
