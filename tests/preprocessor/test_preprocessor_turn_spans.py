"""What the span of a turn's placement says."""

from typing import Any

from services.preprocessor.turn_spans import TurnSpans


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


def test_placement_of_a_held_turn_names_the_turn_that_it_waited_for() -> None:
    scope: Any = FakeScope()
    spans = TurnSpans(scope, 2)
    spans.held("other", 0.25)
    spans.placed("w", "p")
    assert scope.spans["place"] == {
        "turnwire.attempt": 2,
        "turnwire.held_for": "other",
        "turnwire.held_s": 0.25,
        "turnwire.worker": "w",
        "turnwire.parser": "p",
    }
