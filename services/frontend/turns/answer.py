"""Makes one answer: admits its request, opens a turn for each choice, and ends what is left when
the answer ends.

Every kind of answer is made by the same calls, and differs in its sink: HTTP streams and documents
(`apis.shared.http_answer`), background responses and WebSocket lanes
(`apis.responses.state.running`), and summaries that this server reads itself (`compaction`).

The first byte is sent when the gateway has opened every turn, so that a refusal gets an error
status. A later failure is the stream's last event. However an answer ends (hang-up, slow reader,
timeout), turns that have not finished are cancelled, and the caller is charged.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from typing_extensions import override

from schemas.conversation import Conversation
from schemas.errors import ContextOverflow, ErrorInfo, ErrorKind, TimedOut, TurnwireError
from schemas.events import Prepared, TurnEvent
from services.frontend.turns.answer_record import AnswerRecord
from services.frontend.turns.interfaces import (
    Admitted,
    AnswerInfo,
    CancelReason,
    OpenTurn,
    ParsedRequest,
    TurnSink,
)
from services.frontend.turns.shortening import shorten_conversation
from services.frontend.turns.turn_service import ModelAccess


class AnswerSink(TurnSink):
    """Receives the events of all turns of an answer, each with its choice."""

    started: bool
    """The head is sent, so errors can only be sent in the answer."""
    ended: bool
    """All events of the answer have arrived."""

    @abstractmethod
    def expect_choices(self, choices: int) -> None:
        """Takes the number of choices of an admitted request. Their turns are opened next."""

    @abstractmethod
    def begin(self, prepared: Sequence[Prepared]) -> None:
        """Starts the answer when all turns are open. Raises TurnwireError for a turn that has
        failed since."""

    @override
    @abstractmethod
    def push(self, events: list[TurnEvent], tokens: int = 0, choice: int = 0) -> None: ...

    @abstractmethod
    async def finish(self) -> None:
        """Returns at the end of the answer."""

    @abstractmethod
    def give_up(self, error: ErrorInfo) -> None:
        """Ends the started answer with an error."""

    @abstractmethod
    def stop(self) -> None:
        """Accepts nothing more."""


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
        self._until_opening = asyncio.timeout_at(self._deadline)
        """The deadline until turns are opened, which has its own."""
        self._model_name = ""
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
        try:
            async with self._until_opening:
                yield
        except TimeoutError:
            if self._until_opening.when() is None:  # turns are being opened: not this deadline
                raise
            record.conclude(str(ErrorKind.TIMED_OUT))
            raise _timed_out() from None
        except TurnwireError as error:
            record.conclude(str(error.info.kind))
            raise
        except (asyncio.CancelledError, ConnectionError):
            record.conclude("hangup")
            raise
        finally:
            record.conclude("internal")
            record.close(self.dialect, _now())
            self.context.caller.spend(record.tokens)

    async def send(
        self, request: ParsedRequest, sink: AnswerSink, *, may_shorten: bool = False
    ) -> None:
        """Admits a request, and passes the events of its turns to the sink until the answer ends.

        `may_shorten`: see `run_turns`; a request for a summary always may. Raises as `admit` and
        `run_turns`.
        """
        self.record.stream = request.stream
        self.record.choices_per_prompt = request.choices
        conversations = request.conversations
        admitted = await self.admit(conversations)
        await self.model.report(request)  # examines schemas, which have a limit now

        # A compaction must not fail because of what it removes.
        may_shorten = may_shorten or conversations[0].summary
        await self.run_turns(admitted, sink, may_shorten=may_shorten)

    async def admit(self, conversations: Sequence[Conversation]) -> list[Admitted]:
        """Admits one conversation for each choice. Raises as `Admission.admit`."""
        first = conversations[0]
        card = self.model.card_for(first)
        self._model_name = self.model.name_for(first)
        self.record.begin(card.name, first.client, _now())
        admitted = await self.model.admit(first)
        return [admitted, *map(admitted.with_choice, conversations[1:])]

    def info(self) -> AnswerInfo:
        """Returns what a renderer needs besides the events. `admit` must have returned."""
        return self.model.answer_info(self._model_name)

    async def run_turns(
        self, admitted: Sequence[Admitted], sink: AnswerSink, *, may_shorten: bool
    ) -> None:
        """Opens the turn of every choice, or none, and passes their events to the sink until the
        answer ends. If cancelled, cancels the turns.

        `may_shorten`: drop the oldest messages of a conversation that exceeds the context window,
        if it is the only one. Raises TurnwireError, for a stream only before its first byte: later
        errors are its last event.
        """
        sink.expect_choices(len(admitted))
        try:
            await self._open(admitted, sink, may_shorten)
            await self._finish(sink)
        finally:
            if not sink.ended:
                self.cancel("hangup")
            self._open_turns = ()  # each holds the sink, which holds the answer: a cycle
            sink.stop()

    def cancel(self, reason: CancelReason) -> None:
        """Cancels the open turns."""
        cancelled = self._open_turns
        self._open_turns = ()
        for turn in cancelled:
            turn.cancel(reason)

    async def _open(
        self, admitted: Sequence[Admitted], sink: AnswerSink, may_shorten: bool
    ) -> None:
        """Opens every turn and starts the answer. A stream that its first events have started
        survives the deadline: `_finish` ends it with an error."""
        self._until_opening.reschedule(None)
        try:
            async with asyncio.timeout_at(self._deadline):
                if len(admitted) == 1:
                    opened = [await self._open_turn(admitted[0], sink, may_shorten)]
                else:
                    opened = await self._open_choices(admitted, sink)
                self._open_turns = opened

                images = admitted[0].images
                if images is not None:
                    images.release()
                self._count_prompts(opened)
                sink.begin([turn.prepared for turn in opened])
        except TimeoutError:
            if not sink.started:
                raise _timed_out() from None

    async def _open_turn(self, admitted: Admitted, sink: AnswerSink, may_shorten: bool) -> OpenTurn:
        """Opens the only turn, with a shorter conversation if it must and may be."""
        admission = self.turns.admission
        try:
            return await admission.open(admitted, sink, turn_id=self.turn_id)
        except ContextOverflow as overflow:
            if not may_shorten:
                raise
            shorter = await shorten_conversation(admitted.conversation, overflow, self.model)
        shortened = admitted.with_messages(shorter.messages)
        return await admission.open(shortened, sink, turn_id=self.turn_id)

    async def _open_choices(self, admitted: Sequence[Admitted], sink: AnswerSink) -> list[OpenTurn]:
        """Opens the turns of several choices, all or none."""
        tasks: list[asyncio.Task[OpenTurn]] = []
        try:
            for choice, request in enumerate(admitted):
                opening = self.turns.admission.open(
                    request, ChoiceSink(sink, choice), turn_id=f"{self.turn_id}c{choice}"
                )
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

    def _count_prompts(self, opened: Sequence[OpenTurn]) -> None:
        """Records the tokens of the prompts, each once for all its choices."""
        one_of_each_prompt = opened[:: self.record.choices_per_prompt]
        self.record.prompt_tokens = sum(turn.prepared.prompt_tokens for turn in one_of_each_prompt)

    async def _finish(self, sink: AnswerSink) -> None:
        """Waits for the end of the answer, until the deadline."""
        loop = asyncio.get_running_loop()
        timer = loop.call_at(self._deadline, self._time_out, sink)
        try:
            await sink.finish()
        finally:
            timer.cancel()

    def _time_out(self, sink: AnswerSink) -> None:
        if sink.ended:
            return
        self.record.outcome = str(ErrorKind.TIMED_OUT)
        self.cancel("timeout")
        sink.give_up(_timed_out().info)


class ChoiceSink(TurnSink):
    """Passes on the events of one choice of several."""

    def __init__(self, sink: AnswerSink, choice: int) -> None:
        self._sink = sink
        self._choice = choice

    @override
    def opened(self, prepared: Prepared) -> None:
        """Does nothing: the answer starts when all choices are prepared."""

    @override
    def push(self, events: list[TurnEvent], tokens: int = 0) -> None:
        self._sink.push(events, tokens, self._choice)


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
