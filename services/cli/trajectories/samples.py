"""Puts turns together to samples: one for each stretch of a session in which every prompt extends the tokens before.

A turn continues a sample if its prompt begins with all of the sample's ids. Otherwise it begins a sample of its own,
and `Break` says from which one it departs, where and why. So each decoded token is in one loss mask, once. Pure.
"""

import re
from array import array
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Literal, TypeAlias

from msgspec import Struct

from schemas.conversation import Call, Conversation, Part, Text
from services.cli.trajectories.blocks import Block
from services.cli.trajectories.turns import DecodedTurn
from services.ledger.keys import key_arguments, squeeze
from services.preprocessor.prompt.next_prefix import common_prefix

_MARKS = re.compile(r"<[^>]*>|\[[^\]]*\]|\s+|\w+|[^\w\s]")

Cause: TypeAlias = Literal["retry", "fork", "client", "template", "head", "unseen"]
"""
retry: the prompt of an earlier turn again: another try, another choice (`n`), or another session that begins alike.
fork: the earlier turns, up to the end of one of them, and then another continuation.
client: the client changed what the model wrote, or left some of it out.
template: the client sent the model's turn back, and its tokens are others: the template renders it differently.
head: something before the first answer changed (tools, instructions, a date), or the client summarized its history.
unseen: the prompt has turns of the model that were not recorded.
"""


class Break(Struct, frozen=True, omit_defaults=True):
    """Why a sample begins where it does, though it has a history."""

    cause: Cause
    sample: str | None = None
    """The sample from which it departs …"""
    at: int | None = None
    """… and the first place at which their ids differ."""
    turn: str | None = None
    """The turn of that sample in which, or behind which, that is."""


class TurnSpan(Struct, frozen=True):
    """One turn of a sample. Offsets count ids of the sample."""

    turn: str
    time: float
    """Unix time of the request."""
    start: int
    """Where the output begins; the prompt is everything before."""
    end: int
    finish: str
    """Why decoding ended: `stop`, `length`, `context`, `stop_string`."""
    stop_id: int | None
    """The end token, which is then the last one before `end`."""
    blocks: list[Block] | None
    """The output's blocks; None: they were not computed."""


class Sample(Struct, frozen=True):
    """One line of the output."""

    id: str
    """The id of its first turn."""
    model: str
    session: str | None
    """The session id that the client sent."""
    ids: list[int]
    loss_mask: list[int]
    """One for each id: 1 where the model decoded it in a turn of this sample, else 0."""
    logprobs: list[float | None] | None
    """One for each id, null where none was recorded; null: none at all."""
    turns: list[TurnSpan]
    departs: Break | None = None
    """Null: the beginning of a conversation."""


class _Open:
    """A sample that may go on."""

    def __init__(self, turn: DecodedTurn, departs: Break | None) -> None:
        self.first = turn
        self.departs = departs
        self.ids = array("I")
        self.logprobs: dict[int, float] = {}
        self.turns: list[tuple[DecodedTurn, TurnSpan]] = []
        self.last = 0.0
        """When its last turn ended."""

    @property
    def session(self) -> str | None:
        return self.first.conversation.client.session

    def add(self, turn: DecodedTurn, blocks: Sequence[Block] | None, now: float) -> None:
        """Appends a turn whose prompt begins with all ids so far."""
        start, self.last = len(turn.prompt), now
        self.ids = turn.prompt + turn.output
        self.logprobs |= {start + at: value for at, value in enumerate(turn.logprobs) if value is not None}
        placed = None if blocks is None else [block.moved(start) for block in blocks]
        span = TurnSpan(turn.turn, turn.time, start, len(self.ids), str(turn.reason), turn.stop_id, placed)
        self.turns.append((turn, span))

    def continues(self, turn: DecodedTurn) -> bool:
        """Whether the prompt begins with all ids, and is of the same session as far as that is known."""
        return _alike(self.first.conversation, turn.conversation) and turn.prompt[: len(self.ids)] == self.ids

    def sample(self) -> Sample:
        """The sample as it stands."""
        mask = [0] * len(self.ids)
        for _, span in self.turns:
            mask[span.start : span.end] = [1] * (span.end - span.start)
        logprobs = [self.logprobs.get(at) for at in range(len(self.ids))] if self.logprobs else None
        conversation, spans = self.first.conversation, [span for _, span in self.turns]
        return Sample(
            self.first.turn, conversation.model, self.session, self.ids.tolist(), mask, logprobs, spans, self.departs
        )


class Sampler:
    """Follows all sessions of a deployment."""

    def __init__(self) -> None:
        self._open: list[_Open] = []

    def add(self, turn: DecodedTurn, blocks: Sequence[Block] | None, now: float) -> None:
        """Takes a turn that has ended at this Unix time. `blocks`: those of its output."""
        longest = max((one for one in self._open if one.continues(turn)), key=lambda one: len(one.ids), default=None)
        if longest is None:
            longest = _Open(turn, self._break(turn))
            self._open.append(longest)
        longest.add(turn, blocks, now)

    def close(self, before: float = float("inf")) -> list[Sample]:
        """The samples whose last turn ended before a Unix time. A session that goes on later begins another one."""
        closed = [one for one in self._open if one.last < before]
        self._open = [one for one in self._open if one.last >= before]
        return [one.sample() for one in closed]

    def _break(self, turn: DecodedTurn) -> Break | None:
        """Why this turn continues no sample."""
        conversation, prompt = turn.conversation, turn.prompt
        begun = any(one.role == "assistant" for one in conversation.turns)
        near = [
            (_alike(one.first.conversation, conversation), len(common_prefix(one.ids, prompt)), one)
            for one in self._open
            if one.first.conversation.model == conversation.model
            and one.first.conversation.client.tenant == conversation.client.tenant
        ]
        near = [(alike, at, one) for alike, at, one in near if at >= _head(one.first) and (alike or begun)]
        if near:
            _, at, other = max(near, key=lambda found: found[:2])
            return _departure(other, turn, at) if begun or at == len(prompt) else None
        if not begun:
            return None
        for other in reversed(self._open):
            if _alike(other.first.conversation, conversation) and _returned(other.turns[-1][0], conversation):
                return Break("head", other.first.turn, len(common_prefix(other.ids, prompt)))
        return Break("unseen")


def _departure(other: _Open, turn: DecodedTurn, at: int) -> Break:
    """The break of a prompt that has the first `at` ids of another sample, its first prompt among them."""
    first, last = other.first.turn, other.turns[0][0]
    for known, span in other.turns:
        if at == len(turn.prompt) == span.start:
            return Break("retry", first, at, known.turn)
        if at < _head(known):
            break
        last = known
        if at < span.end:
            cause: Cause = "template" if _returned(known, turn.conversation) else "client"
            return Break(cause, first, at, known.turn)
    return Break("fork", first, at, last.turn)


def _head(turn: DecodedTurn) -> int:
    """About how many ids of a turn's prompt come before its opening, the marks of its reasoning, which the template may
    write differently once the turn is history. Each mark, and the white space behind it, is taken for one token."""
    ledger = None if turn.context is None else turn.context.ledger
    return len(turn.prompt) - (0 if ledger is None else len(_MARKS.findall(ledger.opening)))


def _alike(one: Conversation, other: Conversation) -> bool:
    """Whether two requests may be of one session: the same model and tenant, and no two session ids."""
    return (one.model, one.client.tenant) == (other.model, other.client.tenant) and (
        one.client.session == other.client.session or None in (one.client.session, other.client.session)
    )


def _returned(turn: DecodedTurn, conversation: Conversation) -> bool:
    """Whether a history has a turn with the same text and calls, in whatever form its client sends them back."""
    written = _content(turn.written)
    runs = groupby(conversation.turns, key=lambda one: one.role == "assistant")
    return any(_content(part for one in run for part in one.parts) == written for mine, run in runs if mine)


def _content(parts: Iterable[Part]) -> tuple[str, list[str]]:
    texts, calls = [], []
    for part in parts:
        if isinstance(part, Text):
            texts.append(squeeze(part.text))
        elif isinstance(part, Call):
            calls.append(key_arguments(part.arguments, freeform=part.kind == "custom"))
    return "".join(texts), sorted(calls)
