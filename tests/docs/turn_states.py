"""Draws the states of a turn for docs/bus.md: `python -m tests.docs.turn_states`."""

from itertools import groupby

from services.frontend.gateway.turn_state import TRANSITIONS


def drawing() -> str:
    """One line for each pair of states, with the events between them."""
    lines = [
        (
            state,
            ", ".join(
                words(event.name) for event, following in events.items() if following is after
            ),
            after,
        )
        for state, events in TRANSITIONS.items()
        for after in dict.fromkeys(events.values())
    ]
    width = max(len(events) for _, events, _ in lines)
    return "\n".join(
        f"{words(state.__name__) if first else '':9} ── {events} "
        f"{'─' * (width - len(events))}──▶ {words(after.__name__)}"
        for state, group in groupby(lines, key=lambda line: line[0])
        for first, (_, events, after) in zip(
            (True, *[False] * len(TRANSITIONS)), group, strict=False
        )
    )


def words(name: str) -> str:
    """A name as words."""
    return name.lower().replace("_", " ")


if __name__ == "__main__":
    print(drawing())
