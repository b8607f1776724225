"""Describes messages on the bus in lines of text, for `turnwire tap`. Pure."""

from typing import Any

import msgspec
from msgspec import Struct

from schemas import control, events, frames, ledger
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
    kind, target = kind_of(subject), target_of(subject)
    match message:
        case frames.TokenFrame():
            return [
                Line(kind, target, entry.turn, _tokens(message, entry)) for entry in message.entries
            ]
        case frames.EventFrame():
            return [
                Line(kind, target, entry.turn, _attempt(entry.attempt) + describe(event))
                for entry in message.entries
                for event in entry.events
            ]
        case control.Replay(streams=streams) if streams:
            everything = " and all others from 0" if message.all else ""
            places = (
                (s.turn, f"attempt {s.attempt}, block {s.block}, offset {s.offset}")
                for s in streams
            )
            return [
                Line(kind, target, turn, f"{message.receiver} is at {at}{everything}")
                for turn, at in places
            ]
    return [Line(kind, target, getattr(message, "turn", ""), _describe(message))]


def _describe(message: Any) -> str:
    match message:
        case frames.TurnRequest(conversation=conversation):
            tools = f", {len(conversation.tools)} tools" if conversation.tools else ""
            resume = f", resumes after {len(message.resume) // 4} tokens" if message.resume else ""
            return (
                _attempt(message.attempt)
                + f"{len(conversation.messages)} messages{tools}{resume}, from {message.frontend}"
            )
        case frames.GenerateRequest():
            limit = message.sampling.max_tokens
            prompt = ids(frames.unpack_ids(message.prompt))
            prompt += f" with {len(message.images)} images" if message.images else ""
            held = (
                f", held {message.held_s:.3f} s for {message.held_for}" if message.held_for else ""
            )
            return (
                _attempt(message.attempt)
                + f"prompt {prompt}, max_tokens {limit}, tokens to {message.parser}{held}"
            )
        case frames.CountRequest(conversation=conversation):
            return f"count {len(conversation.messages)} messages"
        case frames.TokenizeRequest():
            return "tokenize " + (
                "a conversation" if message.text is None else f"{len(message.text)} characters"
            )
        case frames.DetokenizeRequest():
            return f"detokenize {ids(frames.unpack_ids(message.token_ids))}"
        case control.Cancel():
            return f"cancel up to attempt {message.attempt}: {message.reason}"
        case control.Credit():
            return (
                f"{message.receiver} has handled {frame_number(message.seq)}, window "
                f"{message.window}"
            )
        case control.Replay():
            return f"{message.receiver} requests everything from 0"
        case control.Heartbeat():
            return _heartbeat(message)
        case control.KvUpdate():
            stored, removed = len(message.stored), len(message.removed)
            return (
                f"#{message.seq} of {message.worker}: {stored} bytes of keys stored, {removed} "
                "removed"
            )
        case ledger.LedgerEntry():
            end = "" if message.closed else ", cut off"
            return f"a turn of {len(frames.unpack_ids(message.ids))} tokens{end}"
    return msgspec.json.encode(message).decode()


def describe(event: events.TurnEvent) -> str:
    """Describes one event."""
    match event:
        case events.Prepared():
            path = f"{event.worker} → {event.parser}"
            return (
                f"prepared: {event.prompt_tokens} prompt tokens, {event.max_tokens} may follow, "
                f"{path}"
            )
        case events.BlockStart():
            return " ".join(
                filter(None, (f"[{event.block}]", event.kind, event.name, event.call_id))
            )
        case events.Delta():
            return f"[{event.block}] {event.offset:>5} {msgspec.json.encode(event.text).decode()}"
        case events.OutputTokens():
            return f"tokens from {event.at} on: {ids(event.ids)}"
        case events.Dispatch():
            call = " ".join(filter(None, (event.name, event.call_id)))
            return f"[{event.block}] dispatch {call} {' '.join(event.arguments.splitlines())}"
        case events.BlockStop():
            return (
                f"[{event.block}] end after {event.length} "
                f"characters{'' if event.complete else ', incomplete'}"
            )
        case events.HostedResults():
            return f"results of {len(event.results)} hosted calls"
        case events.Finish(usage=usage):
            tokens = f"{usage.prompt} prompt ({usage.cached} cached), {usage.output} output tokens"
            return f"finish: {event.reason}, {event.blocks} blocks, {tokens}"
        case events.Failed():
            return f"failed: {event.error.kind}: {event.error.message}"
        case events.Interrupted():
            return (
                f"interrupted after {len(event.token_ids) // 4} tokens on {event.worker}: "
                f"{event.error.message}"
            )


def ids(numbers: list[int]) -> str:
    """Formats token ids; a long list by its ends only."""
    if len(numbers) <= MANY:
        return "[" + " ".join(map(str, numbers)) + "]"
    half = MANY // 2
    ends = " ".join(map(str, numbers[:half])), " ".join(map(str, numbers[-half:]))
    return f"[{ends[0]} … {ends[1]}] ({len(numbers)} ids)"


def frame_number(seq: int) -> str:
    """The number of a frame in its link; after the link began again, with the link's generation."""
    generation, number = divmod(seq, 1 << GENERATION_BITS)
    return f"#{number}" + (f" of generation {generation}" if generation else "")


def _tokens(frame: frames.TokenFrame, entry: frames.TokenEntry) -> str:
    text = _attempt(entry.attempt) + f"{frame_number(frame.seq)} at {entry.at} {ids(entry.ids)}"
    if entry.cached is not None:
        text += f", {entry.cached} cached"
    if entry.finish is not None:
        text += f", finish: {entry.finish.reason}"
        text += f" by {entry.finish.stop_id}" if entry.finish.stop_id is not None else ""
        text += f" ({entry.finish.error.message})" if entry.finish.error is not None else ""
    return text


def _heartbeat(beat: control.Heartbeat) -> str:
    load = f"{beat.load.running} running, {beat.load.waiting} waiting"
    slots = f", {beat.load.slots} slots" if beat.load.slots else ""
    state = " leaving" if beat.leaving else " draining" if beat.draining else ""
    return f"{' '.join(card.name for card in beat.models) or '-'}: {load}{slots}{state}"


def _attempt(attempt: int) -> str:
    return f"attempt {attempt}: " if attempt > 1 else ""
