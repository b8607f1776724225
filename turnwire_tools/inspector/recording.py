"""Reads recordings of `turnwire tap`, whole messages (`--json`) or turns (`--record`), as messages
of the bus. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import msgspec

from schemas.conversation import Conversation, Sampling
from schemas.events import Prepared, TurnEvent
from schemas.frames import (
    EventEntry,
    EventFrame,
    GenerateRequest,
    TokenEntry,
    TokenFrame,
    TurnRequest,
)
from services.runtime.streams.turn_log import TurnLog, with_dispatches
from turnwire_tools.replay import replay_file
from turnwire_tools.tap import messages

Timed: TypeAlias = tuple[float, str, Any]
"""Time of arrival, receiver, decoded message."""


def read(name: str, text: str) -> list[Timed]:
    """The messages in a file, by time. Raises UsageError, which names the line, for a line that is
    not one."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    timed: Iterable[Timed]
    if '"subject"' in first:
        lines = messages.read_lines(name, text.encode().split(b"\n"))
        timed = ((time, messages.receiver_of(subject), message) for time, subject, message in lines)
    else:
        timed = _turns(replay_file.read(name, text))
    return sorted(timed, key=lambda message: message[0])


def _turns(replay: replay_file.Replay) -> Iterator[Timed]:
    for turn in replay.turns:
        if turn.recorded is None or turn.conversation is None:
            raise replay_file.BadReplay(
                f"{replay.name}:{turn.line}: not recorded by `turnwire tap --record`"
            )
        start = float(turn.recorded.get("time", 0.0))
        for at, receiver, message in _turn(turn, str(turn.recorded.get("turn")), turn.conversation):
            yield start + at, receiver, message


def _turn(turn: replay_file.Turn, name: str, conversation: Conversation) -> Iterator[Timed]:
    """A recorded turn as messages, with times since its request."""
    prompt, context, usage = (
        turn.prompt or replay_file.RecordedPrompt(0.0),
        turn.context,
        turn.usage,
    )
    attempt, worker, parser = prompt.attempt, prompt.worker, prompt.parser
    yield 0.0, "", TurnRequest(name, "the frontend", conversation)
    if attempt > 1:
        yield prompt.at, "", TurnRequest(name, "", conversation, attempt)
    if turn.prompt is not None:
        raw = msgspec.Raw(msgspec.json.encode(context))
        request = GenerateRequest(
            name, attempt, conversation.model, prompt.ids, parser, "", Sampling(), [], raw
        )
        yield (
            prompt.at,
            worker,
            msgspec.structs.replace(request, reused=prompt.reused, recall=prompt.recall),
        )
    if usage.prompt:
        limit = 0 if context is None else context.max_tokens
        opened = Prepared(usage.prompt, limit, worker, parser, cached=usage.cached)
        yield prompt.at, "", EventFrame("", 0, [EventEntry(name, attempt, [opened])])
    tokens, log = 0, TurnLog()
    for step in turn.steps:
        if isinstance(step, replay_file.RecordedTokens):
            yield step.at, "", TokenFrame("", 0, [TokenEntry(name, attempt, tokens, step.tokens)])
            tokens += len(step.tokens)
        elif isinstance(step, replay_file.RecordedEvents):
            events: list[TurnEvent] = list(with_dispatches(step.events, log))
            yield step.at, "", EventFrame("", 0, [EventEntry(name, attempt, events)])
