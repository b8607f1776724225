"""Writes turns on the bus as a replay file: the request, the tokens, and the events made of them. Pure.

A turn is written when it has ended. What another attempt repeats is left out, as the frontend leaves it out. API keys
are never on the bus; the sender of a request (`client`) and the cache salt are left out here.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from schemas.conversation import Client, Hints
from schemas.events import Failed, Finish, Usage
from services.cli.bus.turns import FollowedTurn, TurnFollower
from services.cli.replay import script
from services.cli.replay.answer import story_of
from services.cli.replay.redaction import redact


class Recorder:
    """Follows the turns on a bus. `redact`: masks the letters of all texts."""

    def __init__(self, *, redact: bool = False) -> None:
        self._redact = redact
        self._turns = TurnFollower()

    @staticmethod
    def head() -> bytes:
        """The first line of a new file."""
        return msgspec.json.encode({"replay": script.VERSION, "about": "Recorded by `turnwire tap --record`."}) + b"\n"

    @property
    def unfinished(self) -> int:
        """The number of turns that have not ended."""
        return self._turns.unfinished

    def take(self, message: Any, now: float, receiver: str = "") -> list[bytes]:
        """Takes a message of the bus to `receiver`; returns the lines of each turn that it ends."""
        return [self._text(turn) for turn in self._turns.take(message, now, receiver)]

    def _text(self, turn: FollowedTurn) -> bytes:
        lines = [msgspec.to_builtins(line) for line in _lines(turn)]
        return b"".join(msgspec.json.encode(line) + b"\n" for line in (redact(lines) if self._redact else lines))


def _lines(turn: FollowedTurn) -> Iterator[script.TurnStart | script.Step | script.TurnProperties]:
    """The lines of the file."""
    conversation = replace(turn.conversation, client=Client(), hints=Hints())
    recorded = {"turn": turn.id, "model": conversation.model, "time": turn.time}
    yield script.TurnStart(conversation=conversation, recorded=recorded)
    if turn.context is not None:
        context = replace(turn.context, frontend="", ledger=None, tenant=None, prompt_ids=b"")
        yield script.TurnProperties(context=context)
    if turn.placed is not None:
        yield script.TurnProperties(prompt=turn.placed)
    usage = turn.last.usage if isinstance(turn.last, Finish) else Usage()
    yield script.TurnProperties(usage=Usage(usage.prompt, usage.cached))
    yield from turn.steps
    story = story_of(event for step in turn.steps if isinstance(step, script.RecordedEvents) for event in step.events)
    yield script.TurnProperties(expect=story, end=_end(turn.last, story))


def _end(last: Finish | Failed | None, story: script.Story) -> script.End:
    if not isinstance(last, Finish) or last.reason in ("cancelled", "error"):
        return "error"
    if last.reason in ("length", "context"):
        return "length"
    return "calls" if last.reason == "stop" and any(kind == "call" for kind, _ in story) else "stop"
