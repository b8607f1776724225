"""Sends turns to workers: each to the best worker that takes it.

| step   | file                                   | result                                      |
|--------|----------------------------------------|---------------------------------------------|
| hold   | `holding.py`, with the rules of        | the workers, best first, once the best one  |
|        | `leads.py`; ranks them by              | computes nothing that is worth waiting for  |
|        | `placement.py`, again after each wait  |                                             |
| assign | `placement.py`                         | the turn counts at the worker and at a      |
|        |                                        | parser shard, which the request names       |
| offer  | `worker_links.py`                      | the worker's reply                          |

A turn that a worker refuses goes to the next one, if the refusal is not the turn's own fault. If a
worker may have the turn and does not reply, the attempt fails (`TimedOut`), as it does if the
turn's deadline passes before a worker has it.
"""

from schemas.errors import (
    MEDIA_MISSING,
    ContextOverflow,
    ErrorInfo,
    NotFound,
    Overloaded,
    Unavailable,
    raised,
)
from services.preprocessor.next_prompts import NextPrompts
from services.preprocessor.observer import AttemptObserver
from services.preprocessor.prepared_turn import PreparedTurn
from services.preprocessor.routing.holding import Holding, TurnHold
from services.preprocessor.routing.placement import Placement
from services.preprocessor.routing.worker_links import WorkerLinks


class WorkerSender:
    """Sends turns to the workers of one model."""

    def __init__(
        self,
        links: WorkerLinks,
        placement: Placement,
        holding: Holding,
        next_prompts: NextPrompts,
    ) -> None:
        self._links = links
        self._placement = placement
        self._holding = holding
        self._next_prompts = next_prompts

    async def send_turn(self, turn: PreparedTurn, observer: AttemptObserver) -> None:
        """Sends a turn to the best worker that takes it, as soon as no other turn computes the
        beginning of its prompt.

        Raises as `TurnHold.wait_for_workers` and `WorkerLinks.offer`, and the error of the worker
        that was tried last.
        """
        with self._holding.open_hold(turn, observer) as hold:
            refusal: ErrorInfo | None = None
            # No suspension between these workers and `begin_offer` to the first one: turns that are
            # ranked after this one must find it as their lead.
            for worker in await hold.wait_for_workers():
                refusal = await self._offer(turn, worker, hold, observer)
                if refusal is None:
                    return
                if not _another_may_take_it(refusal):
                    break
            assert refusal is not None  # `wait_for_workers` returns at least one
            raise raised(refusal)

    async def _offer(
        self, turn: PreparedTurn, worker: str, hold: TurnHold, observer: AttemptObserver
    ) -> ErrorInfo | None:
        """Offers a turn to a worker. Returns why the worker did not take it; None: it has."""
        with self._placement.assign(turn, worker) as assignment:
            self._next_prompts.note_turn(turn, worker)
            request = hold.begin_offer(assignment.complete(turn.for_worker), worker)
            reply = await self._links.offer(worker, request, turn.deadline)
            hold.record_reply(reply)
            assignment.accepted = reply.error is None

        if reply.error is None:
            observer.placed(worker, assignment.parser)
        else:
            # rare: a worker did not take a turn
            observer.refused(worker, reply.error)
            self._next_prompts.forget_turn(turn)
        return reply.error


def _another_may_take_it(refusal: ErrorInfo) -> bool:
    """Whether another worker may take a turn that was refused so: the worker has no room, is not
    available, or has too small a window or no longer the turn's adapter (NotFound). Other errors
    are of the request itself."""
    if refusal.code == MEDIA_MISSING:
        return False
    return isinstance(raised(refusal), Overloaded | Unavailable | ContextOverflow | NotFound)
