"""Makes one answer: admits its request, opens a turn for each choice, and ends what is left when
the answer ends.

Every kind of answer is made by the same call, and differs in its sink: HTTP streams and documents
(`apis.shared.http_answer`), background responses and WebSocket lanes
(`apis.responses.state.detached`), and summaries that this server reads itself (`compaction`).

The first byte is sent when the gateway has opened every turn, so that a refusal gets an error
status. A later failure is the stream's last event. However an answer ends (hang-up, slow reader,
timeout), turns that have not finished are cancelled, and the caller is charged.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from typing_extensions import override

from schemas.conversation import Conversation
from schemas.errors import ContextOverflow, ErrorKind, TimedOut, TurnwireError
from schemas.events import Prepared, TurnEvent
from services.frontend.turns.answer_record import AnswerRecord
from services.frontend.turns.cancel_scope import CancelScope, reason_of
from services.frontend.turns.interfaces import (
    Admitted,
    CancelReason,
    OpenTurn,
    ParsedRequest,
    TurnSink,
)
from services.frontend.turns.shortening import shorten_conversation
from services.frontend.turns.sinks import AnswerSink
from services.frontend.turns.turn_service import ModelAccess


class RunningAnswer:
    """One answer while it is made."""

    def __init__(
        self,
        model: ModelAccess,
        dialect: str,
        *,
        started: float | None = None,
        turn_id: str | None = None,
    ) -> None:
        """
        Args:
            dialect: the API's name in metrics.
            started: the loop's time, by default now.
            turn_id: by default the request's id.
        """
        turns = model.turns
        started = _now() if started is None else started
        self.model = model
        self.turns = turns
        self.context = model.context
        self.dialect = dialect
        self.turn_id = model.context.id if turn_id is None else turn_id
        self.record = AnswerRecord(turns.metrics, started)
        self._deadline = started + turns.config.request_timeout_s
        self._sink: AnswerSink | None = None
        """Set while turns are opened and run."""
        self._scope = CancelScope()
        """What the deadline cancels: the request, then the opening of its turns."""
        self._open_turns: Sequence[OpenTurn] = ()
        """One for each choice. Empty until all are open, and after `cancel`."""

    def __repr__(self) -> str:
        return (
            f"<{self.turn_id} of {self.dialect}, {len(self._open_turns)} open turns, {self.record}>"
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While entered, the answer is made. At the end, it is recorded and charged.

        Raises TimedOut if the deadline passes before turns are opened.
        """
        record = self.record
        timer = asyncio.get_running_loop().call_at(self._deadline, self._time_out)
        try:
            with self._scope as request:
                yield
            if request.reason is not None:
                raise _timed_out()
        except TurnwireError as error:
            record.conclude(str(error.info.kind))
            raise
        except (asyncio.CancelledError, ConnectionError):
            record.conclude("hangup")
            raise
        finally:
            timer.cancel()
            record.conclude("internal")
            record.close(self.dialect, _now())
            self.context.caller.spend(record.tokens)
            usage = record.usage
            if usage is not None:
                self.turns.usage.count(self.context.tenant, record.model, usage)

    async def run(self, request: ParsedRequest, sink: AnswerSink) -> None:
        """Admits a request, reports what its answer will lack, and passes the events of its turns
        to the sink until the answer ends. If cancelled, cancels the turns.

        Raises as `Admission.admit`, and TurnwireError. An error of a stream that has started is its
        last event instead.
        """
        self.record.stream = request.stream
        self.record.choices_per_prompt = request.choices
        choices = await self._admit_choices(request.conversations)
        await self.model.report(request)  # examines schemas, which have a limit now

        # A compaction must not fail because of what it removes.
        may_shorten = request.may_shorten or request.conversation.summary
        await self._run_turns(choices, sink, may_shorten=may_shorten)

    async def run_summary(self, conversation: Conversation, sink: AnswerSink) -> None:
        """Runs the turn that writes a summary for this server, as `run`."""
        choices = await self._admit_choices([conversation])
        await self._run_turns(choices, sink, may_shorten=True)

    def cancel(self, reason: CancelReason) -> None:
        """Cancels the open turns."""
        cancelled = self._open_turns
        self._open_turns = ()
        for turn in cancelled:
            turn.cancel(reason)

    async def _admit_choices(self, conversations: Sequence[Conversation]) -> list[Admitted]:
        """Admits one conversation for each choice. Raises as `Admission.admit`."""
        first = conversations[0]
        card = self.model.card_for(first)
        self.record.begin(card.name, first.client, _now(), card.adapter)

        admitted = await self.turns.admission.admit(first, self.context.caller, card)
        return [admitted, *map(admitted.with_choice, conversations[1:])]

    async def _run_turns(
        self, choices: list[Admitted], sink: AnswerSink, *, may_shorten: bool
    ) -> None:
        """Opens the turn of every choice, or none, and passes their events to the sink until the
        answer ends. `may_shorten`: as `ParsedRequest.may_shorten`."""
        sink.expect_choices(len(choices))
        try:
            await self._open(choices, sink, may_shorten=may_shorten)
            if sink.failed:
                self.cancel("abandoned")
            await sink.finish()
        finally:
            if sink.failed:
                self.cancel("abandoned")
            elif not sink.ended:
                self.cancel("hangup")
            self._open_turns = ()  # each holds the sink, which may hold the answer: a cycle
            self._sink = None
            sink.stop()

    async def _open(self, choices: list[Admitted], sink: AnswerSink, *, may_shorten: bool) -> None:
        """Opens every turn and starts the answer. A stream that its first events have started
        survives the deadline, and ends with an error."""
        self._sink = sink
        self._scope = CancelScope()
        with self._scope as opening:
            if len(choices) == 1:
                opened = [await self._open_turn(choices[0], sink, may_shorten=may_shorten)]
            else:
                opened = await self._open_choices(choices, sink)
            self._open_turns = opened

            images = choices[0].images
            if images is not None:
                images.release()
            self._count_prompts(opened)
            sink.begin([turn.prepared for turn in opened])
        if opening.reason is not None:
            if not sink.started:
                raise _timed_out()
            self._end_late(sink)

    async def _open_turn(
        self, request: Admitted, sink: AnswerSink, *, may_shorten: bool
    ) -> OpenTurn:
        """Opens the only turn, with a shorter conversation if it must and may be."""
        try:
            return await self.turns.open(request, sink, turn_id=self.turn_id)
        except ContextOverflow as overflow:
            if not may_shorten:
                raise
            shorter = await shorten_conversation(request.conversation, overflow, self.model)
        shortened = request.with_conversation(shorter)
        return await self.turns.open(shortened, sink, turn_id=self.turn_id)

    async def _open_choices(self, choices: list[Admitted], sink: AnswerSink) -> list[OpenTurn]:
        """Opens the turns of several choices, all or none."""
        tasks: list[asyncio.Task[OpenTurn]] = []
        try:
            for choice, request in enumerate(choices):
                opening = self.turns.open(
                    request, ChoiceSink(self, sink, choice), turn_id=f"{self.turn_id}c{choice}"
                )
                tasks.append(asyncio.create_task(opening))
                await asyncio.sleep(0)  # each may encode megabytes
            return await asyncio.gather(*tasks)
        except BaseException as error:
            reason = reason_of(error)
            for task in tasks:
                task.cancel(reason)
            for turn in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(turn, BaseException):
                    turn.cancel(reason)
            raise

    def _count_prompts(self, opened: Sequence[OpenTurn]) -> None:
        """Records the tokens of the prompts, each once for all its choices."""
        one_of_each_prompt = opened[:: self.record.choices_per_prompt]
        self.record.prompt_tokens = sum(turn.prepared.prompt_tokens for turn in one_of_each_prompt)

    def _time_out(self) -> None:
        """Ends the answer at its deadline."""
        if self._scope.is_entered:
            self._scope.cancel("timeout")
        elif self._sink is not None:
            self._end_late(self._sink)

    def _end_late(self, sink: AnswerSink) -> None:
        """Ends a started answer with an error, unless all of it has arrived."""
        if sink.ended:
            return
        self.record.outcome = str(ErrorKind.TIMED_OUT)
        self.cancel("timeout")
        sink.give_up(_timed_out().info)


class ChoiceSink(TurnSink):
    """Passes on the events of one choice of several, and cancels the others if it fails."""

    def __init__(self, answer: RunningAnswer, sink: AnswerSink, choice: int) -> None:
        self._answer = answer
        self._sink = sink
        self._choice = choice

    @override
    def opened(self, prepared: Prepared) -> None:
        """Starts no answer, which starts when all choices are prepared."""
        self._answer.record.move_to(prepared.model)

    @override
    def push(self, events: list[TurnEvent], tokens: int = 0) -> None:
        sink = self._sink
        sink.push(events, tokens, self._choice)
        if sink.failed and sink.started:  # before its start, `_run_turns` gets the failure
            self._answer.cancel("abandoned")


@asynccontextmanager
async def logged(answer: RunningAnswer, event: str) -> AsyncIterator[None]:
    """Runs an answer that the access log does not have, and logs it at its end as `event`."""
    try:
        async with answer.running():
            yield
    finally:
        fields = {
            "request": answer.context.request_id,
            "outcome": answer.record.outcome,
            "tenant": answer.context.tenant,
            **answer.record.fields(),
        }
        if answer.model.not_enforced:
            fields["not_enforced"] = answer.model.not_enforced
        answer.turns.log.info(event, **fields)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _timed_out() -> TimedOut:
    return TimedOut("The request took longer than this server allows.")
