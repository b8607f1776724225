"""The turn that is ready to be sent: what every worker gets, and what its placement needs. Pure."""

import math

from msgspec import Struct

from schemas.errors import DEADLINE_PASSED, TimedOut
from schemas.ledger import LedgerContext
from schemas.requests import GenerateRequest, TurnRequest
from services.preprocessor.prompt.prompt_maker import Prompt


class PreparedTurn(Struct, frozen=True, kw_only=True):
    """A turn with its prompt. Made once, and never changed."""

    request: TurnRequest
    prompt: Prompt
    for_worker: GenerateRequest
    """What any worker gets. An `Assignment` adds `parser` and `cache_salt`, a `TurnHold` `notice`,
    `notice_tokens`, `held_s` and `held_for`, `WorkerLinks` `timeout_s` and `time`."""
    block_key_ids: bytes
    """The ids (packed, too) from which the keys of the prompt's KV blocks are made: images with
    different content have different ids."""
    ledger: LedgerContext | None
    """The prompt's part of the turn's ledger entry; None: the turn gets none."""
    deadline: float
    """When the answer becomes useless, by the loop's time; infinite: never."""

    def __repr__(self) -> str:
        request = self.request
        tokens = self.prompt_tokens
        return f"<turn {request.turn}, attempt {request.attempt}, {tokens} prompt tokens>"

    @property
    def prompt_tokens(self) -> int:
        """The number of the prompt's tokens."""
        return len(self.prompt.ids)


def deadline_of(request: TurnRequest, now: float) -> float:
    """Returns the deadline of a request that arrives now (`PreparedTurn.deadline`)."""
    return math.inf if request.timeout_s is None else now + request.timeout_s


def seconds_left(deadline: float, now: float) -> float | None:
    """Returns the time until the deadline of a request, None if it has none.

    Raises:
        TimedOut: the deadline has passed. The client no longer waits for the turn.
    """
    if deadline <= now:
        raise TimedOut("The request took longer than this server allows.", code=DEADLINE_PASSED)
    return None if deadline == math.inf else deadline - now
