"""In tests, an event that a turn's state does not expect is an error, not a line in the log."""

from collections.abc import Iterator

import pytest

from services.frontend.gateway.turn_observer import BusTurnObserver


@pytest.fixture(autouse=True, scope="session")
def strict_states() -> Iterator[None]:
    def refuse(_observer: BusTurnObserver, turn: str, event: str) -> None:
        raise AssertionError(f"{turn}: {event} was not expected")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BusTurnObserver, "unexpected_event", refuse)
        yield
