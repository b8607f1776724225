"""Joins turns to samples: one for each stretch of a session in which every prompt extends the
tokens before.

A turn continues a sample if its prompt begins with all of the sample's ids. Otherwise it begins a
sample of its own: `Break` names the sample from which it departs, the place and the cause, and
`Parent` the turn that it goes back to. So each decoded token is in one loss mask, once. Pure.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from services.rollouts.lineage import bare_text, begins_with_summary, find_parent, has_summary
from services.rollouts.open_sample import OpenSample
from services.rollouts.sample_lines import Break, Cause, Parent, Sample
from services.rollouts.sampled_turn import SampledTurn
from services.tokenization.segments import common_prefix


class _NearSample(Struct, frozen=True):
    """A sample that begins as a prompt does."""

    sample: OpenSample
    is_same_session: bool
    at: int
    """How many ids are equal."""


class Sampler:
    """Follows all sessions of a deployment, or of one run of an agent."""

    def __init__(self, *, one_run: bool = False) -> None:
        """`one_run`: all turns are of one run of an agent."""
        self._one_run = one_run
        self._open: dict[str, OpenSample] = {}

    def add(self, turn: SampledTurn) -> OpenSample:
        """Takes a turn that has ended; returns its sample."""
        continued = [sample for sample in self._open.values() if sample.is_continued_by(turn)]
        if continued:
            sample = max(continued, key=lambda sample: len(sample.ids))
            sample.add(turn)
        else:
            sample = self._begin(turn)
            sample.add(turn)
            self._find_parent(sample)
            self._open[sample.id] = sample
        return sample

    def follow(self, turn: SampledTurn) -> Sample:
        """Takes a turn that has ended; returns what it adds to its sample.

        Joined by sample, the lists of these are those of the whole samples; of the other members
        the last value counts.
        """
        sample = self.add(turn)
        self._find_parent(sample)
        return sample.sample(len(sample.turns) - 1)

    def close(self, before: float = float("inf")) -> list[Sample]:
        """Samples with a last turn that ended before a Unix time. A session that goes on later
        begins another one."""
        closed = [sample for sample in self._open.values() if sample.last < before]
        for sample in closed:
            self._find_parent(sample)
        for sample in closed:
            del self._open[sample.id]
        return [sample.sample() for sample in closed]

    def _begin(self, turn: SampledTurn) -> OpenSample:
        """A sample for a turn that continues none."""
        near = [*self._near(turn)]
        sample = OpenSample(turn)
        sample.parent = self._summary_before(turn, near)
        if sample.parent is None:
            sample.departs = self._break(turn, near)
            sample.parent = self._departed(sample.departs)
        if sample.parent is not None:
            if sample.kind == "background":
                sample.parent = replace(sample.parent, cause="background")
            elif sample.kind == "main":
                sample.kind = self._open[sample.parent.sample].kind
        return sample

    def _departed(self, departs: Break | None) -> Parent | None:
        """The parent of a sample that departs from another one."""
        if departs is None or departs.sample is None:
            return None
        last = self._open[departs.sample].turns[-1].span.turn
        return Parent(departs.sample, departs.turn or last, departs.cause)

    def _find_parent(self, sample: OpenSample) -> None:
        """Looks for the parent of a sample that begins a conversation: at its beginning, and again
        when it is returned, because an agent may start before the turn that calls it has ended."""
        if sample.parent is not None or sample.departs is not None:
            return
        tenant = sample.client.tenant
        others = [other for other in self._open.values() if other.client.tenant == tenant]
        sample.parent = find_parent(sample, others, one_run=self._one_run)
        if sample.parent is not None and sample.kind == "main":
            sample.kind = "helper"

    def _summary_before(self, turn: SampledTurn, near: Sequence[_NearSample]) -> Parent | None:
        """The turn that wrote the summary with which this one goes on."""
        of_session = [
            sample
            for sample in self._open.values()
            if sample.kind != "background" and (sample.is_of(turn) or self._one_run)
        ]
        writer = _writer_of_summary(turn, near, of_session)
        if writer is None:
            return None
        return Parent(writer.id, writer.turns[-1].span.turn, "compaction")

    def _break(self, turn: SampledTurn, near: Sequence[_NearSample]) -> Break | None:
        """Why this turn continues no sample."""
        if not turn.answers:
            for other in near:
                if other.is_same_session and other.at == len(turn.prompt):
                    return _departure(other.sample, turn, other.at)
            return None
        if near:
            nearest = max(near, key=lambda other: (other.is_same_session, other.at))
            return _departure(nearest.sample, turn, nearest.at)

        for sample in reversed(self._open.values()):
            if sample.is_of(turn) and sample.turns[-1].digest in turn.answers:
                return Break("head", sample.id, len(common_prefix(sample.ids, turn.prompt)))
        return Break("unseen")

    def _near(self, turn: SampledTurn) -> Iterator[_NearSample]:
        """The samples that a turn may depart from.

        Sessions with other ids may begin alike. Only one that has the whole first turn was made of
        this one.
        """
        for sample in self._open.values():
            if not sample.has_owner(turn):
                continue
            at = len(common_prefix(sample.ids, turn.prompt))
            is_same_session = sample.is_of(turn)
            first = sample.turns[0]
            needed = first.head if is_same_session else first.span.end
            if at >= needed:
                yield _NearSample(sample, is_same_session, at)


def _text_of(question: Sequence[str]) -> str:
    return bare_text("\n".join(question))


def _writer_of_summary(
    turn: SampledTurn, near: Sequence[_NearSample], of_session: Sequence[OpenSample]
) -> OpenSample | None:
    """The newest sample with a summary that a turn has in its question or, if no sample is near it,
    as its first answer. A sample near the turn that has the same summary went on with it first."""
    asked = _text_of(turn.question)
    for writer in reversed(of_session):
        if has_summary(asked, writer):
            if not any(has_summary(_text_of(other.sample.question), writer) for other in near):
                return writer
        elif not near and writer.turns[-1].digest in turn.answers:
            is_summary = begins_with_summary(turn.answers, writer, of_session)
            return writer if is_summary else None
    return None


def _departure(other: OpenSample, turn: SampledTurn, at: int) -> Break:
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
