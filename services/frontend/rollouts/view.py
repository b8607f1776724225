"""One rollout as this frontend has read it: the sum of its records, without tokens."""

import asyncio

from msgspec import Struct

from services.frontend.rollouts.store import Record
from services.rollouts.rollout import Rewards, Rollout, RolloutState
from services.rollouts.stored_turns import BegunTurn, FailedTurn, StoredTurn, WhyMissing

NOT_READ = 2**64
"""In place of the number of a record that was not read."""


class TurnView(Struct, frozen=True):
    """One turn of a rollout."""

    run: int
    output_tokens: int = 0
    frontend: str = ""
    """The frontend in which it runs; "": it has ended."""
    why: WhyMissing | None = None
    """Why it has no tokens; None: it has, or it runs."""
    version: int | None = None
    """The oldest version of the weights that decoded it (`StoredTurn.oldest_version`); None: it is
    not known, or the turn has no tokens."""


class RolloutView:
    """One rollout, as far as its records were read, with what this frontend is writing."""

    def __init__(self, rollout: Rollout, number: int) -> None:
        """`number`: of its first record."""
        self.rollout = rollout
        self.state = RolloutState()
        self._rewards: dict[int, Rewards] = {}
        """The rewards of each run."""
        self.first = number
        self.read_to = number
        """The number of the last record that was read."""
        self.read_at = 0.0
        """The loop's time of the last reading."""
        self.is_stale = False
        """Whether a notice came since then."""
        self.changed = asyncio.Event()
        """Set when the next notice comes; then there is another one for the notice after it."""
        self.reading = asyncio.Lock()
        self._turns: dict[str, TurnView] = {}
        self._begun: dict[str, int] = {}
        """The number of each turn's record that it has begun."""
        self._unstored: dict[str, TurnView] = {}
        """Turns of this frontend, open or ended, with a last record that was not read back."""
        self._images: set[str] = set()

    def receive_notice(self) -> None:
        """Takes notice of a change: what was read is stale, and those that wait for it go on."""
        self.is_stale = True
        self.changed.set()
        self.changed = asyncio.Event()

    def apply(self, number: int, record: Record) -> None:
        """Takes a record that was read, the next after all before."""
        self.read_to = number
        match record:
            case RolloutState() | Rewards():
                self.take(record)
            case BegunTurn():
                self._begun[record.turn] = number
                self._turns[record.turn] = turn_view(record)
            case StoredTurn() | FailedTurn():
                self._unstored.pop(record.turn, None)
                self._turns[record.turn] = turn_view(record)
        if isinstance(record, StoredTurn):
            self._images |= {image.hash for image in record.images}

    def take(self, record: RolloutState | Rewards) -> None:
        """Takes a state or rewards, also those that this frontend has just stored: a copy of the
        store may lack them for a moment."""
        if isinstance(record, Rewards):
            self._rewards[record.run] = record
        elif record.run >= self.state.run:
            self.state = record

    def note(self, record: BegunTurn | StoredTurn | FailedTurn) -> None:
        """Notes a record that this frontend writes, in place of what is read of the turn until the
        turn's last record is read."""
        self._unstored[record.turn] = turn_view(record)

    @property
    def turns(self) -> dict[str, TurnView]:
        """The turns of the current run, open ones among them."""
        turns = self._turns | self._unstored
        return {id: turn for id, turn in turns.items() if turn.run == self.state.run}

    @property
    def rewards(self) -> Rewards:
        """The rewards of the current run."""
        return self._rewards.get(self.state.run, Rewards(self.state.run))

    def is_unstored(self, turn: str) -> bool:
        """Returns whether this frontend has a turn that is not stored, or not read back."""
        return turn in self._unstored

    @property
    def turns_with_tokens(self) -> list[TurnView]:
        """The turns that have ended with tokens."""
        return [turn for turn in self.turns.values() if not (turn.frontend or turn.why)]

    @property
    def open_turns(self) -> list[TurnView]:
        """The turns that have not ended, or were lost with their frontend."""
        return [turn for turn in self.turns.values() if turn.frontend]

    @property
    def is_writing(self) -> bool:
        """Whether this frontend has turns that run, or are not stored."""
        return any(turn.run == self.state.run for turn in self._unstored.values())

    @property
    def decoded_turns(self) -> int:
        """The number of turns that have ended and were decoded, if only in part."""
        turns = self.turns.values()
        return sum(turn.output_tokens > 0 and not turn.frontend for turn in turns)

    def began_before(self, id: str) -> dict[str, TurnView]:
        """Returns the open turns that began before this one. Those that were not read have begun
        later."""
        own = self._begun.get(id, NOT_READ)
        return {
            turn: view
            for turn, view in self.turns.items()
            if view.frontend and self._begun.get(turn, NOT_READ) < own
        }

    @property
    def output_tokens(self) -> int:
        """The tokens of all turns that have ended."""
        return sum(turn.output_tokens for turn in self.turns.values())

    @property
    def versions(self) -> list[int]:
        """The oldest version of the weights of each turn with tokens."""
        return sorted({turn.version for turn in self.turns_with_tokens if turn.version is not None})

    def has_image(self, hash: str) -> bool:
        """Returns whether the prompt of any turn has an image with this hash."""
        return hash in self._images


def turn_view(record: BegunTurn | StoredTurn | FailedTurn) -> TurnView:
    """Returns a turn as its last record describes it."""
    match record:
        case BegunTurn():
            return TurnView(record.run, frontend=record.frontend)
        case StoredTurn():
            return TurnView(record.run, record.output_tokens, version=record.oldest_version)
        case FailedTurn():
            return TurnView(record.run, record.output_tokens, why=record.why)
