"""What a sender notes of turns for the prompts that follow them."""

from services.preprocessor.prepared_turn import PreparedTurn


class NextPrompts:
    """Prepares for the prompts that follow turns. This one does nothing; a `PrefilledNextPrompts`
    prefills them."""

    def note_turn(self, turn: PreparedTurn, worker: str) -> None:
        """Notes a turn that is sent to a worker. Called before the worker has the turn: a short
        turn may have ended when the acceptance arrives."""

    def forget_turn(self, turn: PreparedTurn) -> None:
        """Drops the note of a turn that the worker refused."""
