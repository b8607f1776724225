"""Reads recordings of `turnwire tap`, whole messages (`--json`) or turns (`--record`), as messages
of the bus. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from schemas.conversation import Client, Conversation, Sampling
from schemas.events import Prepared, TurnEvent
from schemas.frames import NO_STREAM, EventEntry, EventFrame, TokenEntry, TokenFrame
from schemas.requests import GenerateRequest, TurnRequest
from services.runtime.streams.turn_log import TurnLog
from turnwire_tools.dispatches import with_dispatches
from turnwire_tools.replay import replay_file
from turnwire_tools.tap import messages

Timed: TypeAlias = tuple[float, str, Any]
"""Time at which it was sent, receiver, decoded message."""


def read(name: str, text: str) -> list[Timed]:
    """The messages in a file, in their order. Raises UsageError, which names the line, for a line
    that is not one."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    if '"subject"' not in first:
        turns = _turns(replay_file.read(name, text))
        return sorted(turns, key=lambda message: message[0])
    lines = messages.read_lines(name, text.encode().split(b"\n"))
    return [
        (messages.sent_at(message, time), messages.receiver_of(subject), message)
        for time, subject, message in lines
    ]


def _turns(replay: replay_file.ReplayFile) -> Iterator[Timed]:
    for turn in replay.turns:
        if turn.recorded is None or turn.conversation is None:
            raise replay_file.BadReplay(
                f"{replay.name}:{turn.line}: not recorded by `turnwire tap --record`"
            )
        origin = turn.recorded
        start = float(origin.get("time", 0.0))
        conversation = replace(turn.conversation, client=_client(origin))
        for at, receiver, message in _turn(turn, str(origin.get("turn")), conversation):
            yield start + at, receiver, message


def _client(origin: Mapping[str, Any]) -> Client:
    """What was recorded of a turn's client. Raises msgspec.ValidationError."""
    names = {name: origin[name] for name in ("session", "parent", "kind") if name in origin}
    return msgspec.convert(names, Client)


def _turn(turn: replay_file.ReplayTurn, name: str, conversation: Conversation) -> Iterator[Timed]:
    """A recorded turn as messages, with times since its request."""
    prompt = turn.prompt or replay_file.RecordedPrompt(0.0)
    attempt = prompt.attempt
    yield 0.0, "", TurnRequest(name, "the frontend", conversation)
    if attempt > 1:
        yield prompt.at, "", TurnRequest(name, "", conversation, attempt)
    if turn.prompt is not None:
        yield prompt.at, prompt.worker, _placed(turn, prompt, name, conversation.model)
    if turn.usage.prompt:
        yield (
            prompt.at,
            "",
            EventFrame("", NO_STREAM, [EventEntry(name, attempt, [_opened(turn, prompt)])]),
        )

    tokens = 0
    log = TurnLog()
    for step in turn.steps:
        if isinstance(step, replay_file.RecordedTokens):
            entry = TokenEntry(name, attempt, tokens, step.tokens)
            yield step.at, "", TokenFrame("", NO_STREAM, [entry])
            tokens += len(step.tokens)
        elif isinstance(step, replay_file.RecordedEvents):
            events: list[TurnEvent] = list(with_dispatches(step.events, log))
            event_entry = EventEntry(name, attempt, events, tokens)
            yield step.at, "", EventFrame("", NO_STREAM, [event_entry])


def _placed(
    turn: replay_file.ReplayTurn, prompt: replay_file.RecordedPrompt, name: str, model: str
) -> GenerateRequest:
    """The request to a worker, as far as it was recorded."""
    return GenerateRequest(
        turn=name,
        attempt=prompt.attempt,
        model=model,
        prompt=prompt.ids,
        parser=prompt.parser,
        frontend="",
        sampling=Sampling(),
        stop_ids=[],
        context=msgspec.Raw(msgspec.json.encode(turn.context)),
        reused=prompt.reused,
        recall=prompt.recall,
    )


def _opened(turn: replay_file.ReplayTurn, prompt: replay_file.RecordedPrompt) -> Prepared:
    limit = 0
    if turn.context is not None:
        limit = turn.context.max_tokens
    usage = turn.usage
    return Prepared(usage.prompt, limit, prompt.worker, prompt.parser, cached=usage.cached)
