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
from services.cli.bus import messages
from services.cli.replay import script
from services.runtime.streams.turn_log import TurnLog, with_dispatches

Timed: TypeAlias = tuple[float, str, Any]
"""Unix time of arrival, receiver, decoded message."""


def read(name: str, text: str) -> list[Timed]:
    """The messages in a file, by time. Raises ValueError, which names the line, for one that is no recording."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    found: Iterable[Timed]
    if '"subject"' in first:
        lines = messages.read_lines(name, text.encode().split(b"\n"), messages.TURN_KINDS)
        found = ((time, messages.receiver_of(subject), message) for time, subject, message in lines)
    else:
        found = _turns(script.read(name, text))
    return sorted(found, key=lambda message: message[0])


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
