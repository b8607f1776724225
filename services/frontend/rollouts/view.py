"""What a frontend knows of one rollout: the sum of its records, without tokens. Pure."""

from msgspec import Struct

from services.frontend.rollouts.store import Record
from services.rollouts.rollout import Rewards, Rollout, RolloutState
from services.rollouts.stored_turns import FailedTurn, OpenTurn, StoredTurn, WhyMissing


class TurnView(Struct, frozen=True):
    """One turn of a rollout."""

    run: int
    number: int
    """The number of its last record; 0: it was not read so far."""
    output_tokens: int = 0
    frontend: str = ""
    """The frontend in which it runs; "": it has ended."""
    why: WhyMissing | None = None
    """Why it has no tokens; None: it has, or it runs."""
    version: int = 0
    """The version of the weights that decoded its first token."""


class RolloutView:
    """One rollout, as far as its records were read."""

    def __init__(self, rollout: Rollout) -> None:
        self.rollout = rollout
        self.state = RolloutState()
        self.rewards = Rewards()
        self.first = 0
        """The number of its first record."""
        self.read_to = 0
        """The number of the last record that was read."""
        self.read_at = 0.0
        """The loop's time of the last reading."""
        self._turns: dict[str, TurnView] = {}
        self._images: set[str] = set()

    def apply(self, record: Record, number: int = 0) -> None:
        """Takes a record that is newer than all before. `number`: its own; 0: it is being
        written."""
        match record:
            case RolloutState():
                self.state = record
            case Rewards():
                self.rewards = record
            case OpenTurn():
                turn = TurnView(record.run, number, frontend=record.frontend)
                self._turns[record.turn] = turn
            case StoredTurn():
                self._turns[record.turn] = TurnView(
                    record.run, number, record.output_tokens, version=record.first_version
                )
                self._images |= {image.hash for image in record.images}
            case FailedTurn():
                self._turns[record.turn] = TurnView(
                    record.run, number, record.output_tokens, why=record.why
                )

    @property
    def turns(self) -> dict[str, TurnView]:
        """The turns of the current run, open ones among them."""
        run = self.state.run
        return {id: turn for id, turn in self._turns.items() if turn.run == run}

    @property
    def stored_turns(self) -> list[TurnView]:
        """The turns with tokens."""
        return [turn for turn in self.turns.values() if not (turn.frontend or turn.why)]

    @property
    def open_turns(self) -> list[TurnView]:
        """The turns that have not ended, or were lost with their frontend."""
        return [turn for turn in self.turns.values() if turn.frontend]

    @property
    def decoded_turns(self) -> int:
        """The number of turns that have ended and were decoded, if only in part."""
        return len([turn for turn in self.turns.values() if turn.output_tokens])

    def turns_before(self, id: str) -> int:
        """Returns how many turns were decoded, or are open and began before this one."""
        own = self.turns[id]
        earlier = [turn for turn in self.open_turns if turn.number < own.number]
        return self.decoded_turns + len(earlier)

    @property
    def output_tokens(self) -> int:
        """The tokens of all turns that have ended."""
        return sum(turn.output_tokens for turn in self.turns.values())

    @property
    def versions(self) -> list[int]:
        """The versions of the weights that decoded the first tokens of its turns."""
        return sorted({turn.version for turn in self.stored_turns})

    def has_image(self, hash: str) -> bool:
        """Returns whether the prompt of any turn has an image with this hash."""
        return hash in self._images
