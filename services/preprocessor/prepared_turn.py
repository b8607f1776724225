"""The turn that is ready to be sent: what every worker gets, and what its placement needs. Pure."""

import math

from msgspec import Struct

from schemas.errors import DEADLINE_PASSED, TimedOut
from schemas.frames import GenerateRequest, TurnRequest
from schemas.ledger import LedgerContext
from services.preprocessor.prompt import Prompt


class Deadline(Struct, frozen=True):
    """When the answer to a request becomes useless, by the loop's time."""

    at: float = math.inf

    @classmethod
    def after(cls, timeout_s: float | None, now: float) -> "Deadline":
        """The deadline of a request that arrives now. `timeout_s`: as in `TurnRequest`."""
        if timeout_s is None:
            return cls()
        return cls(now + timeout_s)

    def seconds_left(self, now: float) -> float | None:
        """Returns the time until the deadline, None if there is none.

        Raises:
            TimedOut: the deadline has passed. The client no longer waits for the turn.
        """
        if self.at <= now:
            raise TimedOut("The request took longer than this server allows.", code=DEADLINE_PASSED)
        if self.at == math.inf:
            return None
        return self.at - now


NO_DEADLINE = Deadline()


class PreparedTurn(Struct, frozen=True, kw_only=True):
    """A turn with its prompt. Made once, and never changed."""

    request: TurnRequest
    prompt: Prompt
    generate: GenerateRequest
    """What every worker gets. `WorkerSender` completes it for the one that it is sent to."""
    keyed: bytes
    """The prompt's ids (`pack_ids`) from which the keys of its KV blocks are made: as in
    `generate`, but images with different content have different ids."""
    ledger: LedgerContext | None
    """The prompt's part of the turn's ledger entry; None: the turn gets none."""
    deadline: Deadline

    def __repr__(self) -> str:
        request = self.request
        tokens = len(self.prompt.ids)
        return f"<turn {request.turn}, attempt {request.attempt}, {tokens} prompt tokens>"
