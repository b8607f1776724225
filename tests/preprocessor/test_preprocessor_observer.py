"""What the span of a turn's placement says."""

from typing import Any

from schemas.conversation import Conversation
from schemas.frames import TurnRequest
from services.preprocessor.ledger_reader import NO_LEDGER_READER
from services.preprocessor.observer import PreprocessorObserver, TracedAttempt
from tests.kit.processes import MakeProcess


class FakeScope:
    """Keeps what is recorded."""

    def __init__(self) -> None:
        self.spans: dict[str, dict[str, Any]] = {}

    def record(
        self,
        name: str,
        start: int,
        end: int,
        details: dict[str, Any],
        *,
        error: str | None = None,
        events: Any = (),
    ) -> None:
        assert start <= end
        self.spans[name] = details


async def test_placement_of_a_held_turn_names_the_turn_that_it_waited_for(
    make_process: MakeProcess,
) -> None:
    process = await make_process("preprocessor", "observed")
    scope: Any = FakeScope()
    request = TurnRequest("t", "f", Conversation("m", []), attempt=2)
    attempt = TracedAttempt(PreprocessorObserver(process, NO_LEDGER_READER), request, scope)
    attempt.held("other", 0.25)
    attempt.placed("w", "p")
    assert scope.spans["place"] == {
        "turnwire.attempt": 2,
        "turnwire.held_for": "other",
        "turnwire.held_s": 0.25,
        "turnwire.worker": "w",
        "turnwire.parser": "p",
    }
