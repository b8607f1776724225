"""What a frontend knows of one rollout: the sum of its records, without tokens. Pure."""

from msgspec import Struct

from services.frontend.rollouts.store import Record
from services.rollouts.rollout import Rewards, Rollout, RolloutState
from services.rollouts.stored_turns import FailedTurn, OpenTurn, StoredTurn


class TurnView(Struct, frozen=True):
    """One turn of a rollout."""

    run: int
    output_tokens: int = 0
    frontend: str = ""
    """The frontend in which it runs; "": it has ended."""
    version: int | None = None
    """The version of the weights that decoded its first token; None: no tokens are recorded."""


class RolloutView:
    """One rollout, as far as its records were read."""

    def __init__(self, rollout: Rollout) -> None:
        self.rollout = rollout
        self.state = RolloutState()
        self.rewards = Rewards()
        self.first = 0
        """The number of its first record."""
        self.seen_at = 0.0
        """The loop's time when that record was there."""
        self.read_to = 0
        """The number of the last record that was read."""
        self.read_at = 0.0
        """The loop's time of the last reading."""
        self._turns: dict[str, TurnView] = {}
        self._images: set[str] = set()

    def apply(self, record: Record) -> None:
        """Takes a record that is newer than all before."""
        match record:
            case RolloutState():
                self.state = record
            case Rewards():
                self.rewards = record
            case OpenTurn():
                self._turns[record.turn] = TurnView(record.run, frontend=record.frontend)
            case StoredTurn():
                self._turns[record.turn] = TurnView(
                    record.run, record.output_tokens, version=record.first_version
                )
                self._images |= {image.hash for image in record.images}
            case FailedTurn():
                self._turns[record.turn] = TurnView(record.run)

    @property
    def turns(self) -> list[TurnView]:
        """The turns of the current run, open ones among them."""
        return [turn for turn in self._turns.values() if turn.run == self.state.run]

    def has_turn(self, id: str) -> bool:
        """Returns whether the current run has a turn with this id."""
        turn = self._turns.get(id)
        return turn is not None and turn.run == self.state.run

    @property
    def ended_turns(self) -> int:
        """The number of turns with tokens."""
        return sum(turn.version is not None for turn in self.turns)

    @property
    def open_turns(self) -> list[TurnView]:
        """The turns that have not ended, or were lost with their frontend."""
        return [turn for turn in self.turns if turn.frontend]

    @property
    def failed_turns(self) -> int:
        """The number of turns that ended without tokens."""
        return len(self.turns) - self.ended_turns - len(self.open_turns)

    def has_image(self, hash: str) -> bool:
        """Returns whether the prompt of any turn has an image with this hash."""
        return hash in self._images

    @property
    def output_tokens(self) -> int:
        """The tokens of all turns that have ended."""
        return sum(turn.output_tokens for turn in self.turns)

    @property
    def versions(self) -> list[int]:
        """The versions of the weights that decoded the first tokens of its turns."""
        return sorted({turn.version for turn in self.turns if turn.version is not None})
