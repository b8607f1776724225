"""Describes messages on the bus in lines of text, for `turnwire tap`. Pure."""

from typing import Any

import msgspec
from msgspec import Struct

from schemas import control, events, frames, ledger, requests, token_ids
from services.runtime.streams.links import GENERATION_BITS
from turnwire_tools.tap.messages import kind_of, target_of

UPKEEP = frozenset({"beat", "credit", "kv", "kvall", "resp"})
"""Kinds that belong to no turn."""
MANY = 12
"""A longer list of token ids is shown by its ends only."""


class Line(Struct, frozen=True):
    """One line of text, about one turn or none."""

    kind: str
    """`turn`, `gen`, `tok`, `evt` …"""
    target: str
    """The rest of the subject: the receiver."""
    turn: str
    """The turn's id, or empty."""
    text: str


def lines(subject: str, message: Any) -> list[Line]:
    """Describes a decoded message, in one line for each turn and event in it."""
    kind = kind_of(subject)
    target = target_of(subject)
    match message:
        case frames.TokenFrame():
            return [
                Line(kind, target, entry.turn, _tokens(message, entry)) for entry in message.entries
            ]
        case frames.EventFrame():
            described = []
            for event_entry in message.entries:
                for event in event_entry.events:
                    text = _attempt(event_entry.attempt) + describe(event)
                    described.append(Line(kind, target, event_entry.turn, text))
            return described
        case control.Replay(streams=streams) if streams:
            return [
                Line(kind, target, position.turn, _position(message, position))
                for position in streams
            ]
    return [Line(kind, target, getattr(message, "turn", ""), _describe(message))]


def _describe(message: Any) -> str:
    """Describes a message that is one line."""
    match message:
        case requests.TurnRequest():
            return _turn_request(message)
        case requests.GenerateRequest():
            return _generate_request(message)
        case control.Heartbeat():
            return _heartbeat(message)
    if isinstance(
        message, requests.CountRequest | requests.TokenizeRequest | requests.DetokenizeRequest
    ):
        return _question(message)
    if isinstance(message, control.Cancel | control.Credit | control.Replay):
        return _control(message)
    if isinstance(message, control.KvUpdate | ledger.LedgerEntry):
        return _stored(message)
    return msgspec.json.encode(message).decode()


def _turn_request(request: requests.TurnRequest) -> str:
    conversation = request.conversation
    text = _attempt(request.attempt) + f"{len(conversation.messages)} messages"
    if conversation.tools:
        text += f", {len(conversation.tools)} tools"
    if request.resume:
        text += f", resumes after {len(request.resume) // 4} tokens"
    return f"{text}, from {request.frontend}"


def _generate_request(request: requests.GenerateRequest) -> str:
    text = _attempt(request.attempt) + f"prompt {ids(token_ids.unpack_ids(request.prompt))}"
    if request.images:
        text += f" with {len(request.images)} images"
    text += f", max_tokens {request.sampling.max_tokens}"
    text += ", a prefill" if request.is_prefill else f", tokens to {request.parser}"
    if request.held_for:
        text += f", held {request.held_s:.3f} s for {request.held_for}"
    return text


def _question(
    message: requests.CountRequest | requests.TokenizeRequest | requests.DetokenizeRequest,
) -> str:
    match message:
        case requests.CountRequest():
            return f"count {len(message.conversation.messages)} messages"
        case requests.TokenizeRequest(text=None):
            return "tokenize a conversation"
        case requests.TokenizeRequest(text=str(text)):
            return f"tokenize {len(text)} characters"
        case requests.DetokenizeRequest():
            return f"detokenize {ids(token_ids.unpack_ids(message.token_ids))}"
    raise AssertionError(message)


def _control(message: control.Cancel | control.Credit | control.Replay) -> str:
    match message:
        case control.Cancel():
            return f"cancel up to attempt {message.attempt}: {message.reason}"
        case control.Credit():
            handled = frame_number(message.seq)
            return f"{message.receiver} has handled {handled}, window {message.window_bytes}"
        case control.Replay():
            return f"{message.receiver} requests everything from 0"


def _stored(message: control.KvUpdate | ledger.LedgerEntry) -> str:
    if isinstance(message, control.KvUpdate):
        stored = f"{len(message.stored)} bytes of keys stored"
        return f"#{message.seq} of {message.worker}: {stored}, {len(message.removed)} removed"
    text = f"a turn of {len(token_ids.unpack_ids(message.ids))} tokens"
    if not message.closed:
        text += ", cut off"
    return text


def _position(replay: control.Replay, position: control.StreamPosition) -> str:
    """Where a receiver is in one turn when it requests what follows."""
    at = f"attempt {position.attempt}, block {position.block}, offset {position.offset}"
    text = f"{replay.receiver} is at {at}"
    if replay.all:
        text += " and all others from 0"
    return text


def describe(event: events.TurnEvent) -> str:
    """Describes one event."""
    match event:
        case events.BlockStart() | events.Delta() | events.Dispatch() | events.BlockStop():
            return f"[{event.block}] {_in_block(event)}"
        case events.OutputTokens():
            return f"tokens from {event.at} on: {ids(event.ids)}"
        case events.HostedResults():
            return f"results of {len(event.results)} hosted calls"
    return _of_turn(event)


def _in_block(
    event: events.BlockStart | events.Delta | events.Dispatch | events.BlockStop,
) -> str:
    match event:
        case events.BlockStart():
            return _words(event.kind, event.name, event.call_id)
        case events.Delta():
            return f"{event.offset:>5} {msgspec.json.encode(event.text).decode()}"
        case events.Dispatch():
            call = _words(event.name, event.call_id)
            return f"dispatch {call} {' '.join(event.arguments.splitlines())}"
        case events.BlockStop():
            text = f"end after {event.length} characters"
            return text if event.complete else f"{text}, incomplete"


def _of_turn(
    event: events.Prepared | events.Finish | events.Failed | events.Interrupted,
) -> str:
    """Describes an event that belongs to no block."""
    match event:
        case events.Prepared():
            tokens = f"{event.prompt_tokens} prompt tokens, {event.max_tokens} may follow"
            return f"prepared: {tokens}, {event.worker} → {event.parser}"
        case events.Finish(usage=usage):
            tokens = f"{usage.prompt} prompt ({usage.cached} cached), {usage.output} output tokens"
            return f"finish: {event.reason}, {event.blocks} blocks, {tokens}"
        case events.Failed():
            return f"failed: {event.error.kind}: {event.error.message}"
        case events.Interrupted():
            place = f"{len(event.token_ids) // 4} tokens on {event.worker}"
            call = event.broken_call
            if call is not None:
                vain = f"{call.tokens} tokens are decoded again"
                return f"broken call after {place}: {call.cause}, {vain}"
            return f"interrupted after {place}: {event.error.message}"


def _words(*words: str | None) -> str:
    """The words that are not empty."""
    return " ".join(word for word in words if word)


def ids(numbers: list[int]) -> str:
    """Formats token ids; a long list by its ends only."""
    if len(numbers) <= MANY:
        return "[" + " ".join(map(str, numbers)) + "]"
    half = MANY // 2
    first = " ".join(map(str, numbers[:half]))
    last = " ".join(map(str, numbers[-half:]))
    return f"[{first} … {last}] ({len(numbers)} ids)"


def frame_number(seq: int) -> str:
    """The number of a frame in its link; after the link began again, with the link's generation."""
    generation, number = divmod(seq, 1 << GENERATION_BITS)
    text = f"#{number}"
    if generation:
        text += f" of generation {generation}"
    return text


def _tokens(frame: frames.TokenFrame, entry: frames.TokenEntry) -> str:
    text = _attempt(entry.attempt) + f"{frame_number(frame.seq)} at {entry.at} {ids(entry.ids)}"
    if entry.cached is not None:
        text += f", {entry.cached} cached"
    if entry.finish is not None:
        text += _end(entry.finish)
    return text


def _end(finish: frames.TokenFinish) -> str:
    text = f", finish: {finish.reason}"
    if finish.stop_id is not None:
        text += f" by {finish.stop_id}"
    if finish.error is not None:
        text += f" ({finish.error.message})"
    return text


def _heartbeat(beat: control.Heartbeat) -> str:
    models = " ".join(card.name for card in beat.models) or "-"
    text = f"{models}: {beat.load.running} running, {beat.load.waiting} waiting"
    if beat.load.slots:
        text += f", {beat.load.slots} slots"
    if beat.leaving:
        text += " leaving"
    elif beat.draining:
        text += " draining"
    return text


def _attempt(attempt: int) -> str:
    return f"attempt {attempt}: " if attempt > 1 else ""
