"""Opens turns over the bus.

`TurnAttempts` finds the processes for a turn, `EventReceiver` passes on its events, `ProcessWatch`
notices lost processes, and `TurnTable` ends it.
"""

import asyncio
from functools import partial

from typing_extensions import override

from schemas.conversation import Conversation
from schemas.errors import (
    RETRY_AFTER_S,
    ErrorInfo,
    TurnwireError,
    Unavailable,
    raised,
    unexpected,
)
from schemas.events import Prepared
from schemas.notices import PromptSeen
from services.frontend.gateway.attempts import TurnAttempts
from services.frontend.gateway.event_receiver import EventReceiver
from services.frontend.gateway.preprocessor_client import PreprocessorClient
from services.frontend.gateway.process_watch import ProcessWatch
from services.frontend.gateway.prompt_origins import PromptOrigins
from services.frontend.gateway.turn_observer import observe_turn
from services.frontend.gateway.turn_state import BusTurn, Ended, Placing, StateEvent, Waiting
from services.frontend.gateway.turn_table import TurnTable
from services.frontend.media.image_reader import RequestImages
from services.frontend.models.catalog import ModelCatalog
from services.frontend.peers import Peers
from services.frontend.turns.cancel_scope import reason_of
from services.frontend.turns.interfaces import Admitted, OpenTurn, TurnGateway, TurnSink
from services.runtime.config.frontend import FrontendConfig
from services.runtime.process import Process

FLUSH_S = 0.5


class BusGateway(TurnGateway):
    """The gateway of a frontend process."""

    def __init__(
        self,
        process: Process,
        config: FrontendConfig,
        peers: Peers,
        catalog: ModelCatalog,
        preprocessors: PreprocessorClient,
    ) -> None:
        self.prompts = PromptOrigins(peers)
        self.table = TurnTable(process)
        """The open turns."""
        self._process = process
        self._config = config
        self._attempts = TurnAttempts(process, config, catalog, preprocessors, self.table)
        self._receiver = EventReceiver(process, catalog, self.prompts, self.table, self._attempts)
        self._process_watch = ProcessWatch(process, self.table, self._attempts)

    async def start(self) -> None:
        """Subscribes to events. Turns can be opened afterwards."""
        await self._receiver.start()

    @property
    def running(self) -> int:
        """The number of open turns."""
        return len(self.table)

    @override
    async def open(self, admitted: Admitted, sink: TurnSink, *, turn_id: str) -> OpenTurn:
        if self._process.draining and not admitted.continues:
            raise Unavailable("this server is shutting down", retry_after_s=RETRY_AFTER_S)
        turn = self._make_turn(admitted, sink, turn_id)
        self.table.add(turn)
        opening = asyncio.create_task(self._place(turn, admitted.images))
        turn.placing.task = opening
        try:
            await asyncio.wait([opening])
        except asyncio.CancelledError as error:
            self.table.cancel(turn, reason_of(error))
            raise
        if opening.cancelled():
            raise _reason_of_end(turn)
        outcome = opening.result()
        if isinstance(outcome, ErrorInfo):
            self.table.end(turn, StateEvent.GIVEN_UP, error=outcome)
            raise raised(outcome)
        return OpenTurn(outcome, partial(self.table.cancel, turn))

    @override
    async def drain(self) -> None:
        try:
            await self.table.wait_until_empty()
        except asyncio.CancelledError:
            error = Unavailable("this server was shut down", retry_after_s=RETRY_AFTER_S)
            for turn in self.table.all():
                self.table.abandon(turn, "shut down", error.info)
            raise

    def _make_turn(self, admitted: Admitted, sink: TurnSink, turn_id: str) -> BusTurn:
        now = asyncio.get_running_loop().time()
        return BusTurn(
            id=turn_id,
            admitted=admitted,
            sink=sink,
            deadline=now + self._config.request_timeout_s,
            observer=observe_turn(self._process, turn_id, admitted.conversation),
            state=Waiting(Placing(until=now + self._config.wait_s)),
        )

    async def _place(self, turn: BusTurn, images: RequestImages | None) -> Prepared | ErrorInfo:
        """Finds the processes for a turn. Returns the error if there are none.

        An exception would refer to the turn, which its request waits for: only the garbage
        collector would free both.
        """
        try:
            turn.compared = await self._find_origin(turn.conversation)
            return await self._attempts.make(turn, images)
        except TurnwireError as error:
            return error.info
        except Exception as error:
            self._process.log.exception("gateway.search_failed", turn=turn.id)
            return unexpected(error)

    async def _find_origin(self, conversation: Conversation) -> PromptSeen | None:
        """Returns the origin of the prompt that a conversation's is compared with."""
        origin = self.prompts.find(conversation)
        if origin is None and conversation.client.compare:
            await self._process.bus.flush(FLUSH_S)  # another frontend's notice may be on its way
            origin = self.prompts.find(conversation)
        return origin


def _reason_of_end(turn: BusTurn) -> BaseException:
    """Returns why the placing of a turn was stopped."""
    if isinstance(turn.state, Ended) and turn.state.error is not None:
        return raised(turn.state.error)
    return asyncio.CancelledError()  # of all tasks, at the end of the process
