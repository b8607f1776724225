"""Joins turns to samples: one for each stretch of a session in which every prompt extends the
tokens before.

A turn continues a sample if its prompt begins with all of the sample's ids. Otherwise it begins a
sample of its own, and `Break` names the sample from which it departs, the place and the cause. So
each decoded token is in one loss mask, once. Pure.
"""

import re
from array import array
from collections.abc import Iterator
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from services.rollouts.turn import SampleBlock, SampledTurn, digest_of
from services.tokenization.segments import common_prefix

_MARKS = re.compile(r"<[^>]*>|\[[^\]]*\]|\s+|\w+|[^\w\s]")

Cause: TypeAlias = Literal["retry", "fork", "client", "template", "head", "unseen"]
"""
retry: the prompt of an earlier turn again: another try, another choice (`n`), or another session
that begins alike.
fork: the earlier turns, up to the end of one of them, and then another continuation.
client: the client changed what the model wrote, or left some of it out.
template: the client sent the model's turn back, and its tokens are others: the template renders it
differently.
head: something before the first answer changed (tools, instructions, a date), or the client
summarized its history.
unseen: the prompt has turns of the model that were not recorded.
"""


class Break(Struct, frozen=True, omit_defaults=True):
    """Why a sample begins where it does, though it has a history."""

    cause: Cause
    sample: str | None = None
    """The sample from which it departs."""
    at: int | None = None
    """The first place at which their ids differ."""
    turn: str | None = None
    """The turn of that sample in which, or after which, that place is."""


class SampleTurn(Struct, frozen=True):
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
    blocks: list[SampleBlock] | None
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
    turns: list[SampleTurn]
    departs: Break | None = None
    """Null: the beginning of a conversation."""


class _SampleTurn(Struct, frozen=True):
    """A turn of an open sample, with which later prompts are compared."""

    span: SampleTurn
    head: int
    """Ids before the opening of its prompt (`_head`)."""
    digest: bytes
    """`digest_of` what it wrote."""


class _OpenSample:
    """A sample that may go on."""

    def __init__(self, turn: SampledTurn, departs: Break | None) -> None:
        self.id = turn.id
        self.model = turn.model
        self.client = turn.client
        self.departs = departs
        self.ids = array("I")
        self.logprobs: dict[int, float] = {}
        self.turns: list[_SampleTurn] = []
        self.last = 0.0
        """When its last turn ended."""

    def add(self, turn: SampledTurn) -> None:
        """Appends a turn with a prompt that begins with all ids so far."""
        start = len(turn.prompt)
        self.last = turn.ended
        self.ids = turn.prompt + turn.output
        for at, logprob in enumerate(turn.logprobs, start):
            if logprob is not None:
                self.logprobs[at] = logprob

        span = SampleTurn(
            turn.id,
            turn.time,
            start,
            len(self.ids),
            str(turn.reason),
            turn.stop_id,
            None if turn.blocks is None else [_moved(block, start) for block in turn.blocks],
        )
        self.turns.append(_SampleTurn(span, _head(turn), digest_of(turn.written)))

    def is_of(self, turn: SampledTurn) -> bool:
        """Whether a turn may be of this session: no two session ids contradict it."""
        sessions = {self.client.session, turn.client.session} - {None}
        return self.has_owner(turn) and len(sessions) < 2

    def has_owner(self, turn: SampledTurn) -> bool:
        """Whether a turn is of the same model and tenant."""
        return (self.model, self.client.tenant) == (turn.model, turn.client.tenant)

    def is_continued_by(self, turn: SampledTurn) -> bool:
        """Whether a turn's prompt begins with all ids, and is of the same session as far as that is
        known."""
        return self.is_of(turn) and turn.prompt[: len(self.ids)] == self.ids

    def sample(self) -> Sample:
        """The sample as it stands."""
        mask = [0] * len(self.ids)
        spans = [turn.span for turn in self.turns]
        for span in spans:
            mask[span.start : span.end] = [1] * (span.end - span.start)
        logprobs = None
        if self.logprobs:
            logprobs = [self.logprobs.get(at) for at in range(len(self.ids))]
        return Sample(
            self.id,
            self.model,
            self.client.session,
            self.ids.tolist(),
            mask,
            logprobs,
            spans,
            self.departs,
        )


def _moved(block: SampleBlock, by: int) -> SampleBlock:
    return replace(block, start=block.start + by, end=block.end + by)


class _NearSample(Struct, frozen=True):
    """A sample that begins as a prompt does."""

    sample: _OpenSample
    is_same_session: bool
    at: int
    """How many ids are equal."""


class Sampler:
    """Follows all sessions of a deployment."""

    def __init__(self) -> None:
        self._open: list[_OpenSample] = []

    def add(self, turn: SampledTurn) -> None:
        """Takes a turn that has ended."""
        continued = (sample for sample in self._open if sample.is_continued_by(turn))
        longest = max(continued, key=lambda sample: len(sample.ids), default=None)
        if longest is None:
            longest = _OpenSample(turn, self._break(turn))
            self._open.append(longest)
        longest.add(turn)

    def close(self, before: float = float("inf")) -> list[Sample]:
        """Samples with a last turn that ended before a Unix time. A session that goes on later
        begins another one."""
        closed = [sample for sample in self._open if sample.last < before]
        self._open = [sample for sample in self._open if sample.last >= before]
        return [sample.sample() for sample in closed]

    def _break(self, turn: SampledTurn) -> Break | None:
        """Why this turn continues no sample."""
        near = [*self._near(turn)]
        if not turn.answers:
            for other in near:
                if other.is_same_session and other.at == len(turn.prompt):
                    return _departure(other.sample, turn, other.at)
            return None
        if near:
            nearest = max(near, key=lambda other: (other.is_same_session, other.at))
            return _departure(nearest.sample, turn, nearest.at)

        for sample in reversed(self._open):
            if sample.is_of(turn) and sample.turns[-1].digest in turn.answers:
                return Break("head", sample.id, len(common_prefix(sample.ids, turn.prompt)))
        return Break("unseen")

    def _near(self, turn: SampledTurn) -> Iterator[_NearSample]:
        """The samples that a turn may depart from.

        Sessions with other ids may begin alike. Only one that has the whole first turn was made of
        this one.
        """
        for sample in self._open:
            if not sample.has_owner(turn):
                continue
            at = len(common_prefix(sample.ids, turn.prompt))
            is_same_session = sample.is_of(turn)
            first = sample.turns[0]
            needed = first.head if is_same_session else first.span.end
            if at >= needed:
                yield _NearSample(sample, is_same_session, at)


def _departure(other: _OpenSample, turn: SampledTurn, at: int) -> Break:
    """The break of a prompt that has the first `at` ids of another sample, its first prompt among
    them."""
    last = other.turns[0].span.turn
    for earlier in other.turns:
        if at == len(turn.prompt) == earlier.span.start:
            return Break("retry", other.id, at, earlier.span.turn)
        if at < earlier.head:
            break
        last = earlier.span.turn
        if at < earlier.span.end:
            cause: Cause = "template" if earlier.digest in turn.answers else "client"
            return Break(cause, other.id, at, last)
    return Break("fork", other.id, at, last)


def _head(turn: SampledTurn) -> int:
    """About how many ids of a turn's prompt come before its opening, the marks of its reasoning,
    which the template may write differently once the turn is history. Each mark, and the white
    space after it, is taken for one token."""
    return len(turn.prompt) - len(_MARKS.findall(turn.opening))
