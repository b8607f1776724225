"""What a message on the bus says, told from its subject and its bytes: the reading side of `turnwire tap`. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from schemas import subjects
from schemas.control import Beat, Cancel, Credit, Replay, Standing
from schemas.events import BlockStart, BlockStop, Delta, Failed, Finish, Interrupted, Prepared, TurnEvent
from schemas.frames import (
    CountRequest,
    DetokenizeRequest,
    EventFrame,
    GenerateRequest,
    TokenEntry,
    TokenFrame,
    TokenizeRequest,
    TurnRequest,
    unpack_ids,
)
from schemas.kv import KvUpdate
from schemas.ledger import LedgerEntry

TYPES: Mapping[str, type[Struct]] = {
    "turn": TurnRequest,
    "count": CountRequest,
    "tokenize": TokenizeRequest,
    "detokenize": DetokenizeRequest,
    "gen": GenerateRequest,
    "tok": TokenFrame,
    "evt": EventFrame,
    "cancel": Cancel,
    "replay": Replay,
    "credit": Credit,
    "beat": Beat,
    "kv": KvUpdate,
    "ledger": LedgerEntry,
}
"""What travels on `tw.v1.<word>.…`."""
UPKEEP = frozenset({"beat", "credit", "kv", "kvall", "resp"})
"""Kinds that say nothing of a turn."""
MANY = 12
"""A longer list of token ids is shown by its ends."""


class Line(Struct, frozen=True):
    """One thing that was said: of one turn, or of none."""

    kind: str
    """The subject's word: `turn`, `gen`, `tok`, `evt` …"""
    target: str
    """Whom it goes to: what follows the word, in plain text."""
    turn: str
    """Empty where it is about no turn."""
    text: str


def kind_of(subject: str) -> str:
    """The subject's word; "" for a subject that is not ours."""
    return subject.removeprefix(subjects.PREFIX + ".").partition(".")[0] if subject.startswith(subjects.PREFIX) else ""


def target_of(subject: str) -> str:
    """What follows the word, unescaped."""
    try:
        return " ".join(subjects.unescape(part) for part in subject.split(".")[3:])
    except ValueError:
        return subject


def decode(subject: str, data: bytes) -> Any:
    """The message as its type; as plain JSON where the subject has none. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(data, type=TYPES.get(kind_of(subject), Any))


def lines(subject: str, message: Any) -> list[Line]:
    """What a decoded message says, one line for each turn and event in it."""
    kind, target = kind_of(subject), target_of(subject)
    match message:
        case TokenFrame():
            return [Line(kind, target, entry.turn, _tokens(message, entry)) for entry in message.entries]
        case EventFrame():
            return [
                Line(kind, target, entry.turn, _attempt(entry.attempt) + event(one))
                for entry in message.entries
                for one in entry.events
            ]
        case Replay(streams=streams) if streams:
            everything = " and all others from 0" if message.all else ""
            return [
                Line(kind, target, s.turn, f"{message.receiver} stands at {_standing(s)}{everything}") for s in streams
            ]
    return [Line(kind, target, getattr(message, "turn", ""), _one(message))]


def _one(message: Any) -> str:
    match message:
        case TurnRequest(conversation=asked):
            tools = f", {len(asked.tools)} tools" if asked.tools else ""
            resume = f", resumes behind {len(message.resume) // 4} tokens" if message.resume else ""
            return _attempt(message.attempt) + f"{len(asked.turns)} messages{tools}{resume}, from {message.frontend}"
        case GenerateRequest():
            limit = message.sampling.max_tokens
            return (
                _attempt(message.attempt)
                + f"prompt {ids(unpack_ids(message.prompt))}, max_tokens {limit}, tokens to {message.parser}"
            )
        case CountRequest(conversation=asked):
            return f"count {len(asked.turns)} messages"
        case TokenizeRequest():
            return "tokenize " + ("a conversation" if message.text is None else f"{len(message.text)} characters")
        case DetokenizeRequest():
            return f"detokenize {ids(unpack_ids(message.token_ids))}"
        case Cancel():
            return f"cancel up to attempt {message.attempt}: {message.reason}"
        case Credit():
            return f"{message.receiver} has handled {message.seq}, window {message.window}"
        case Replay():
            return f"{message.receiver} wants everything from 0"
        case Beat():
            return _beat(message)
        case KvUpdate():
            stored, removed = len(message.stored), len(message.removed)
            return f"#{message.seq} of {message.worker}: {stored} bytes of keys stored, {removed} removed"
        case LedgerEntry():
            end = "" if message.closed else ", cut off"
            return f"a turn of {len(unpack_ids(message.ids))} tokens{end}"
    return msgspec.json.encode(message).decode()


def event(one: TurnEvent) -> str:
    """One event in words."""
    match one:
        case Prepared():
            return (
                f"prepared: {one.prompt_tokens} prompt tokens, {one.max_tokens} may follow, {one.worker} → {one.parser}"
            )
        case BlockStart():
            call = f" {one.name} {one.call_id}" if one.name is not None else ""
            return f"[{one.block}] {one.kind}{call}"
        case Delta():
            return f"[{one.block}] {one.offset:>5} {msgspec.json.encode(one.text).decode()}"
        case BlockStop():
            return f"[{one.block}] end after {one.length} characters{'' if one.complete else ', incomplete'}"
        case Finish(usage=usage):
            tokens = f"{usage.prompt} prompt ({usage.cached} cached), {usage.output} output tokens"
            return f"finish: {one.reason}, {one.blocks} blocks, {tokens}"
        case Failed():
            return f"failed: {one.error.kind}: {one.error.message}"
        case Interrupted():
            return f"interrupted after {len(one.token_ids) // 4} tokens on {one.worker}: {one.error.message}"


def ids(numbers: list[int]) -> str:
    """Token ids, a long list by its ends."""
    if len(numbers) <= MANY:
        return "[" + " ".join(map(str, numbers)) + "]"
    half = MANY // 2
    ends = " ".join(map(str, numbers[:half])), " ".join(map(str, numbers[-half:]))
    return f"[{ends[0]} … {ends[1]}] ({len(numbers)} ids)"


def _tokens(frame: TokenFrame, entry: TokenEntry) -> str:
    said = _attempt(entry.attempt) + f"#{frame.seq} at {entry.at} {ids(entry.ids)}"
    if entry.cached is not None:
        said += f", {entry.cached} cached"
    if entry.finish is not None:
        said += f", finish: {entry.finish.reason}"
        said += f" by {entry.finish.stop_id}" if entry.finish.stop_id is not None else ""
        said += f" ({entry.finish.error.message})" if entry.finish.error is not None else ""
    return said


def _beat(beat: Beat) -> str:
    load = f"{beat.load.running} running, {beat.load.waiting} waiting"
    slots = f", {beat.load.slots} slots" if beat.load.slots else ""
    state = " leaving" if beat.leaving else " draining" if beat.draining else ""
    return f"{' '.join(card.name for card in beat.models) or '-'}: {load}{slots}{state}"


def _standing(standing: Standing) -> str:
    return f"attempt {standing.attempt}, block {standing.block}, offset {standing.offset}"


def _attempt(attempt: int) -> str:
    return f"attempt {attempt}: " if attempt > 1 else ""
