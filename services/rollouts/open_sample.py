"""A sample that later turns may extend, with the data that these are compared with. Pure."""

import re
from array import array
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Call, Text
from schemas.events import UNKNOWN_WEIGHTS, PromptImage, WeightsSpan
from services.rollouts.call_texts import CallTexts
from services.rollouts.sample_lines import (
    Break,
    Kind,
    Parent,
    Sample,
    SampleImage,
    SampleTurn,
    SampleWeights,
)
from services.rollouts.sampled_turn import SampleBlock, SampledTurn, digest_of

_MARKS = re.compile(r"<[^>]*>|\[[^\]]*\]|\s+|\w+|[^\w\s]")
_FIRST_WEIGHTS = WeightsSpan(0, 0)


class AddedTurn(Struct, frozen=True, kw_only=True):
    """A turn of a sample, without its ids."""

    span: SampleTurn
    head: int
    """Ids before the opening of its prompt (`_head`)."""
    digest: bytes
    """`digest_of` what it wrote."""
    text: str
    """Its text without calls."""
    calls: list[CallTexts]
    has_history: bool
    """The model has answered in its request before."""
    logprobs: list[float | None]
    weights: list[SampleWeights]


class OpenSample:
    """The turns of a sample so far."""

    def __init__(self, turn: SampledTurn) -> None:
        """`turn`: the first one, which `add` then adds."""
        self.id = turn.id
        self.model = turn.model
        self.client = turn.client
        self.question = turn.question
        """The first turn's."""
        self.departs: Break | None = None
        self.kind: Kind = turn.client.kind
        self.parent: Parent | None = None
        self.ids = array("I")
        self.images: list[PromptImage] = []
        self.turns: list[AddedTurn] = []
        self.last = 0.0
        """When its last turn ended."""

    @property
    def began(self) -> float:
        """Unix time of its first request."""
        return self.turns[0].span.time

    def add(self, turn: SampledTurn) -> None:
        """Appends a turn with a prompt that begins with all ids so far."""
        start = len(turn.prompt)
        self.last = turn.ended
        self.ids = turn.prompt + turn.output
        self.images = turn.images
        span = SampleTurn(
            turn=turn.id,
            time=turn.time,
            start=start,
            end=len(self.ids),
            finish=str(turn.reason),
            stop_id=turn.stop_id,
            blocks=None if turn.blocks is None else [_moved(block, start) for block in turn.blocks],
            experts=turn.experts or None,
        )
        added = AddedTurn(
            span=span,
            head=_head(turn),
            digest=digest_of(turn.written),
            text="".join(part.text for part in turn.written if isinstance(part, Text)),
            calls=[CallTexts.of(part) for part in turn.written if isinstance(part, Call)],
            has_history=bool(turn.answers),
            logprobs=turn.logprobs,
            weights=[*_weights_of(turn)],
        )
        self.turns.append(added)

    def is_of(self, turn: SampledTurn) -> bool:
        """Whether a turn may be of this session: no two session ids contradict it."""
        sessions = {self.client.session, turn.client.session} - {None}
        return self.has_owner(turn) and len(sessions) < 2

    def has_owner(self, turn: SampledTurn) -> bool:
        """Whether a turn is of the same model and tenant."""
        return (self.model, self.client.tenant) == (turn.model, turn.client.tenant)

    def is_continued_by(self, turn: SampledTurn) -> bool:
        """Whether a turn's prompt begins with all ids and images, and is of the same session as far
        as that is known.

        A recap in the background begins with the session, which then goes on without it.
        """
        if not self.is_of(turn) or turn.prompt[: len(self.ids)] != self.ids:
            return False
        is_background = self.client.kind == "background"
        if is_background != (turn.client.kind == "background"):
            return False
        return turn.images[: len(self.images)] == self.images

    def sample(self, first: int = 0) -> Sample:
        """The sample as it stands, or what its turns from `first` on have added."""
        offset = self.turns[first - 1].span.end if first else 0
        turns = self.turns[first:]
        mask = [0] * (len(self.ids) - offset)
        logprobs: list[float | None] = [None] * len(mask)
        for turn in turns:
            start = turn.span.start - offset
            end = turn.span.end - offset
            mask[start:end] = [1] * (end - start)
            logprobs[start : start + len(turn.logprobs)] = turn.logprobs
        return Sample(
            id=self.id,
            model=self.model,
            session=self.client.session,
            ids=self.ids[offset:].tolist(),
            loss_mask=mask,
            logprobs=logprobs if any(turn.logprobs for turn in turns) else None,
            turns=[turn.span for turn in turns],
            departs=self.departs,
            kind=self.kind,
            parent=self.parent,
            images=[
                SampleImage(image.hash, image.at, image.tokens)
                for image in self.images
                if image.at >= offset
            ],
            weights=[span for turn in turns for span in turn.weights],
            offset=offset,
        )


def _moved(block: SampleBlock, by: int) -> SampleBlock:
    return replace(block, start=block.start + by, end=block.end + by)


def _head(turn: SampledTurn) -> int:
    """About how many ids of a turn's prompt come before its opening, the marks of its reasoning,
    which the template may write differently once the turn is history. Each mark, and the white
    space after it, is taken for one token."""
    return len(turn.prompt) - len(_MARKS.findall(turn.opening))


def _weights_of(turn: SampledTurn) -> Iterator[SampleWeights]:
    """The spans of a turn's output."""
    spans: Sequence[WeightsSpan] = turn.weights
    if not spans or spans[0].at > 0:
        spans = [_FIRST_WEIGHTS, *spans]
    count = len(turn.output)
    ends = [min(span.at, count) for span in spans[1:]]
    before = len(turn.prompt)
    for span, end in zip(spans, [*ends, count], strict=True):
        version = None if span.version == UNKNOWN_WEIGHTS else span.version
        if span.at < end:
            yield SampleWeights(before + span.at, before + end, version)
