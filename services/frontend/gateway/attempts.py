"""Makes the attempts of turns: until a worker has the turn, or no process can take it.

If a preprocessor refuses a turn or dies, another one gets it. If a worker dies in mid-turn, its
parser hands back the tokens, and another worker continues after them. So does any worker after the
tokens before a broken call. A superseded attempt is cancelled. Where no process can take a turn, it
waits for one: up to `recovery_s` if it is in progress, up to `wait_s` if it is new.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from schemas.errors import (
    DEADLINE_PASSED,
    EngineFailed,
    ErrorInfo,
    TurnwireError,
    raised,
    unexpected,
)
from schemas.events import BrokenCall, Finish, Interrupted, LoggedEvent, Prepared, TurnEvent
from schemas.session import tenant_key
from services.frontend.gateway.preprocessor_client import PreprocessorClient, unreachable_error
from services.frontend.gateway.turn_state import (
    AttemptLost,
    AttemptOutcome,
    AttemptRefused,
    BusTurn,
    ImageMissing,
    Placing,
    Resuming,
    StateEvent,
    Waiting,
)
from services.frontend.gateway.turn_table import TurnTable
from services.frontend.media.image_reader import RequestImages
from services.frontend.models.catalog import ModelCatalog
from services.runtime.config.frontend import FrontendConfig
from services.runtime.process import Process
from services.runtime.streams.cursor import Verdict

BOTH_LOST = "the worker and the parser of this turn were lost"


class TurnAttempts:
    """Finds the processes for new turns, and for turns that lost theirs."""

    def __init__(
        self,
        process: Process,
        config: FrontendConfig,
        catalog: ModelCatalog,
        preprocessors: PreprocessorClient,
        table: TurnTable,
    ) -> None:
        self._process = process
        self._config = config
        self._catalog = catalog
        self._preprocessors = preprocessors
        self._table = table

    async def make(self, turn: BusTurn, images: RequestImages | None = None) -> Prepared:
        """Makes attempts, one after the other, until a worker has the turn.

        `images`: stored again, once, if the bucket does not have them any more.

        Raises:
            Unavailable: no process could take the turn in time, or too many attempts were lost.
            TurnwireError: the turn was refused.
        """
        tried: list[str] = []
        while True:
            outcome = await self._attempt(turn, tried)
            match outcome:
                case Prepared():
                    return outcome
                case AttemptRefused(error):
                    raise raised(error.info)
                case AttemptLost(error) | ImageMissing(error) if self._is_last(turn, error):
                    raise raised(error.info)
                case ImageMissing(error):
                    # rare: the bucket does not have an image any more
                    if images is None:
                        raise raised(error.info)
                    await images.store()
                    images = None
                    tried.clear()
                case AttemptLost():
                    pass  # to the next one
            if asyncio.get_running_loop().time() >= turn.placing.until:
                raise unreachable_error() from outcome.error

    def continue_elsewhere(self, turn: BusTurn, lost: Interrupted) -> None:
        """Continues a turn on another worker, after the tokens of the one that died, or on any
        before a broken call."""
        turn.observer.interrupted(lost)
        if not turn.enter(StateEvent.INTERRUPTED, self._resuming()):
            return
        if lost.broken_call is not None:
            self._decode_again(turn, lost, lost.broken_call)
            return
        # rare: a worker was lost in mid-turn, and its parser hands the tokens back
        self._table.supersede(turn, "worker lost")
        if _is_ahead(turn, lost):
            # rare: the client has text that no process has any more
            # The parser that sent it is lost, too. Another worker would decode other tokens from
            # here on.
            self._table.fail(turn, msgspec.structs.replace(lost.error, message=BOTH_LOST))
            return
        if len(lost.token_ids) > len(turn.resume):
            turn.failures = 0  # the turn made progress, so it did not cause the failures
        turn.resume = lost.token_ids
        turn.avoid = [*turn.avoid, lost.worker]
        self._resume(turn, lost.error)

    def _decode_again(self, turn: BusTurn, lost: Interrupted, call: BrokenCall) -> None:
        self._table.supersede(turn, f"broken call: {call.cause}")
        if _is_ahead(turn, lost):
            # rare: a worker that guided calls died in one, and a part of it was sent
            tokens = call.tokens + lost.token_count - turn.resumed_tokens
            call = msgspec.structs.replace(call, tokens=tokens)
        else:
            turn.resume = lost.token_ids
        turn.broken_call = call
        self._place_again(turn, lost.error, lost.rest)

    def restart_or_fail(self, turn: BusTurn, reason: str) -> None:
        """Begins a turn again if nothing was sent to the client yet; ends it otherwise. No process
        has its tokens."""
        if not turn.enter(StateEvent.TOKENS_LOST, self._resuming()):
            return
        error = EngineFailed(reason).info
        self._table.supersede(turn, "tokens lost")
        if _has_begun(turn):
            self._table.fail(turn, error)
        else:
            self._resume(turn, error)

    async def _attempt(self, turn: BusTurn, tried: list[str]) -> AttemptOutcome:
        """Makes one attempt, as soon as there are processes for it. One that is lost is superseded.

        `tried`: the preprocessors of earlier attempts; this one's is added. Raises Unavailable if
        no process takes work in time.
        """
        self._follow_alias(turn)
        preprocessor = await self._preprocessors.wait_for_next(
            turn.card.name,
            tried,
            turn.placing.until,
            patient=isinstance(turn.state, Resuming),
            prefer=self._preferred(turn),
        )
        tried.append(preprocessor)
        turn.attempt.preprocessor = preprocessor
        outcome = await self._preprocessors.send_attempt(turn)
        if isinstance(outcome, AttemptLost | ImageMissing):
            # rare: a preprocessor refuses an attempt, or does not answer
            self._table.supersede(turn, str(outcome.error.info.kind))
            turn.observer.attempt_failed(preprocessor, outcome.error)
        return outcome

    def _is_last(self, turn: BusTurn, error: TurnwireError) -> bool:
        """Returns whether no attempt follows one that ended with this error."""
        return turn.failures >= self._config.attempts or error.info.code == DEADLINE_PASSED

    def _preferred(self, turn: BusTurn) -> str:
        """Returns the preprocessor that knows the prompt that this one is compared with, or else
        the one that the helpers of the same agent share: their prompts begin alike, and there the
        second waits for the first."""
        if turn.compared is not None:
            return turn.compared.preprocessor
        parent = turn.conversation.client.parent
        if parent is None:
            return ""
        return self._preprocessors.shared_preprocessor(
            turn.card.name, tenant_key(turn.conversation, parent)
        )

    def _follow_alias(self, turn: BusTurn) -> None:
        """Moves a waiting turn to another model with the same alias, if its own model takes no
        turns any more. If it may run on no other, it waits for its own."""
        alias = turn.conversation.client.alias
        if alias is None or not isinstance(turn.state, Waiting):
            return
        if self._catalog.takes_turns(turn.card.name):
            return
        card = self._catalog.resolve(alias, turn.conversation, turn.admitted.may_run_on)
        if card.served_name != turn.card.served_name and turn.admitted.may_run_on(card):
            turn.admitted = turn.admitted.move_to(card)
            turn.moved_to = card.name
            turn.observer.moved(card.name)

    def _resuming(self) -> Resuming:
        now = asyncio.get_running_loop().time()
        return Resuming(Placing(until=now + self._config.bus.recovery_s))

    def _resume(self, turn: BusTurn, error: ErrorInfo) -> None:
        """Starts to look for processes that continue a turn. If there are none, the client gets
        `error`."""
        turn.failures += 1
        if turn.failures >= self._config.attempts:
            self._table.fail(turn, error)
        else:
            self._place_again(turn, error)

    def _place_again(
        self, turn: BusTurn, error: ErrorInfo, rest: Sequence[LoggedEvent] = ()
    ) -> None:
        attempts = self._continue(turn, error, rest)
        turn.placing.task = self._process.spawn(attempts, f"resume {turn.id}")

    async def _continue(self, turn: BusTurn, error: ErrorInfo, rest: Sequence[LoggedEvent]) -> None:
        """Finds processes that continue a turn. If there are none, the client gets `rest`, or else
        `error`."""
        try:
            await self.make(turn)
        except TurnwireError as refusal:
            turn.observer.resume_failed(refusal)
            if self._end_with(turn, rest):
                return
            message = f"{error.message}; {refusal}"
            if asyncio.get_running_loop().time() >= turn.placing.until:
                limit = f"it could not be continued within {self._config.bus.recovery_s:g} s"
                message = f"{error.message}; {limit}: {refusal}"
            self._table.fail(turn, msgspec.structs.replace(error, message=message))
        except Exception as unforeseen:
            self._process.log.exception("gateway.search_failed", turn=turn.id)
            self._table.fail(turn, unexpected(unforeseen))

    def _end_with(self, turn: BusTurn, rest: Sequence[LoggedEvent]) -> bool:
        """Ends a turn with the events of an earlier attempt. Returns False if they have no end."""
        accepted = [turn.cursor.accept(event) for event in rest]
        new: list[TurnEvent] = [event for event in accepted if not isinstance(event, Verdict)]
        if not new or not isinstance(new[-1], Finish):
            return False
        # rare: a call is broken, and no process decodes it again
        self._table.push(turn, new, new[-1].usage.output, end=StateEvent.GIVEN_UP)
        return True


def _is_ahead(turn: BusTurn, lost: Interrupted) -> bool:
    """Returns whether the client has more of a turn than the parser that hands its tokens back."""
    if turn.cursor.text_position > (lost.block, lost.offset):
        return True
    return turn.cursor.tokens > lost.token_count


def _has_begun(turn: BusTurn) -> bool:
    """Returns whether the client has text or token ids of a turn."""
    return turn.cursor.text_position != (0, 0) or turn.cursor.tokens > 0
