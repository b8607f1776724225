"""Reads recordings of `turnwire tap`, whole messages (`--json`) or turns (`--record`), as messages of the bus. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import msgspec

from schemas.conversation import Sampling
from schemas.events import Prepared
from schemas.frames import (
    EventEntry,
    EventFrame,
    GenerateRequest,
    TokenEntry,
    TokenFrame,
    TurnRequest,
)
from services.cli.replay import script
from services.cli.tap import bus_view
from services.cli.tap.command import Recorded
from services.runtime.streams.turn_log import TurnLog, with_dispatches

Timed: TypeAlias = tuple[float, str, Any]
"""Unix time of arrival, receiver, decoded message."""

KINDS = frozenset({"turn", "gen", "tok", "evt", "cancel", "replay"})
"""Kinds of messages that belong to turns."""
_decode = msgspec.json.Decoder(Recorded).decode


def read(name: str, text: str) -> list[Timed]:
    """The messages in a file, by time. Raises ValueError, which names the line, for one that is no recording."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    messages = _messages(name, text) if '"subject"' in first else _turns(script.read(name, text))
    return sorted(messages, key=lambda message: message[0])


def receiver_of(subject: str) -> str:
    """The last part of a subject: the process that a message goes to."""
    return bus_view.target_of(subject).rpartition(" ")[2]


def _messages(name: str, text: str) -> Iterator[Timed]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            message = _decode(line)
            if message.payload is not msgspec.UNSET and bus_view.kind_of(message.subject) in KINDS:
                decoded = bus_view.decode(message.subject, bytes(message.payload))
                yield message.time, receiver_of(message.subject), decoded
        except msgspec.MsgspecError as error:
            raise ValueError(f"{name}:{number}: not a line of `turnwire tap --json`: {error}") from None


def _turns(replay: script.Replay) -> Iterator[Timed]:
    for turn in replay.turns:
        if turn.recorded is None or turn.conversation is None:
            raise ValueError(f"{replay.name}:{turn.line}: not recorded by `turnwire tap --record`")
        yield from _turn(turn, turn.conversation, turn.recorded)


def _turn(turn: script.Turn, conversation: Any, recorded: dict[str, Any]) -> Iterable[Timed]:
    name, start, prompt = str(recorded.get("turn")), float(recorded.get("time", 0.0)), turn.prompt
    attempt = 1 if prompt is None else prompt.attempt
    yield start, "", TurnRequest(name, "the frontend", conversation)
    if attempt > 1:
        yield start + (0.0 if prompt is None else prompt.at), "", TurnRequest(name, "", conversation, attempt)
    if prompt is not None:
        context = msgspec.Raw(msgspec.json.encode(turn.context))
        request = GenerateRequest(
            name, attempt, conversation.model, prompt.ids, prompt.parser, "", Sampling(), [], context
        )
        request = msgspec.structs.replace(request, reused=prompt.reused, recall=prompt.recall)
        yield start + prompt.at, prompt.worker, request
    if turn.usage.prompt:
        limit = 0 if turn.context is None else turn.context.max_tokens
        worker, parser = ("", "") if prompt is None else (prompt.worker, prompt.parser)
        opened = Prepared(turn.usage.prompt, limit, worker, parser, cached=turn.usage.cached)
        at = start + (0.0 if prompt is None else prompt.at)
        yield at, "", EventFrame("", 0, [EventEntry(name, attempt, [opened])])
    tokens, log = 0, TurnLog()
    for step in turn.steps:
        if isinstance(step, script.RecordedTokens):
            yield start + step.at, "", TokenFrame("", 0, [TokenEntry(name, attempt, tokens, step.tokens)])
            tokens += len(step.tokens)
        elif isinstance(step, script.RecordedEvents):
            events = with_dispatches(step.events, log)  # type: ignore[arg-type]  # a recorder writes no others
            yield start + step.at, "", EventFrame("", 0, [EventEntry(name, attempt, list(events))])
