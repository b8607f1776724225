"""Writes turns on the bus as a replay file: the request, the tokens, and the events made of them.
Pure.

A turn is written when it has ended. What another attempt repeats is left out, as the frontend
leaves it out. API keys are never on the bus; the sender of a request (`client`) and the cache salt
are left out here. Digests of session ids stay, so that `turnwire inspect` shows the tree of agents.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from schemas.conversation import Client, Hints
from schemas.events import Failed, Finish, LoggedEvent, Usage
from schemas.session import session_digest
from turnwire_tools.clients.answer import End, Story, story_of
from turnwire_tools.replay import replay_file
from turnwire_tools.tap.redaction import redact
from turnwire_tools.tap.turns import NOT_PLACED, FollowedTurn, TurnFollower


class BusRecorder:
    """Follows the turns on a bus. `redact`: masks the letters of all texts."""

    def __init__(self, *, redact: bool = False) -> None:
        self._redact = redact
        self._turns = TurnFollower()

    @staticmethod
    def head() -> bytes:
        """The first line of a new file."""
        header = {"replay": replay_file.VERSION, "about": "Recorded by `turnwire tap --record`."}
        return msgspec.json.encode(header) + b"\n"

    @property
    def unfinished(self) -> int:
        """The number of turns that have not ended."""
        return self._turns.unfinished

    def take(self, message: Any, now: float, receiver: str = "") -> list[bytes]:
        """Takes a message of the bus to `receiver`; returns the lines of each turn that it ends."""
        return [self._text(turn) for turn in self._turns.take(message, now, receiver)]

    def _text(self, turn: FollowedTurn) -> bytes:
        lines = [msgspec.to_builtins(line) for line in _lines(turn)]
        if self._redact:
            lines = redact(lines)
        return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def _lines(
    turn: FollowedTurn,
) -> Iterator[replay_file.TurnStart | replay_file.Step | replay_file.TurnProperties]:
    """The lines of the file."""
    conversation = replace(turn.conversation, client=Client(), hints=Hints())
    origin = {"turn": turn.id, "model": conversation.model, "time": turn.time}
    client = turn.conversation.client
    for name, session in (("session", client.session), ("parent", client.parent)):
        if session is not None:
            origin[name] = session_digest(session).hex()
    if client.kind != "main":
        origin["kind"] = client.kind
    yield replay_file.TurnStart(conversation=conversation, recorded=origin)
    if turn.context is not None:
        context = replace(turn.context, frontend="", ledger=None, tenant=None, prompt_ids=b"")
        yield replay_file.TurnProperties(context=context)
    if turn.placed is not NOT_PLACED:
        yield replay_file.TurnProperties(prompt=turn.placed)

    usage = turn.last.usage if isinstance(turn.last, Finish) else Usage()
    yield replay_file.TurnProperties(usage=Usage(usage.prompt, usage.cached))
    yield from turn.steps

    events: list[LoggedEvent] = []
    for step in turn.steps:
        if isinstance(step, replay_file.RecordedEvents):
            events += step.events
    story = story_of(events)
    yield replay_file.TurnProperties(expect=story, end=_end(turn.last, story))


def _end(last: Finish | Failed | None, story: Story) -> End:
    if not isinstance(last, Finish) or last.reason in ("cancelled", "error"):
        return "error"
    if last.reason in ("length", "context"):
        return "length"
    has_call = any(kind == "call" for kind, _ in story)
    return "calls" if last.reason == "stop" and has_call else "stop"
