"""Packs the turns of a rollout for its store, and reads them in any order.

A turn's prompt nearly always begins with the prompt and output of an earlier turn, its base. So a
stored turn has the base's id, how many ids are equal, and the others: a few KB, however long the
session is. Besides, a store has the turns that have begun (`BegunTurn`) and those that gave nothing
(`FailedTurn`). Pure.
"""

import math
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

from cachetools import LRUCache
from msgspec import Struct

from schemas.conversation import Call, Client, Text
from schemas.events import (
    UNKNOWN_WEIGHTS,
    FinishReason,
    PromptImage,
    WeightsSpan,
    spans_between,
)
from schemas.token_ids import pack_ids, unpack_array
from services.rollouts.sampled_turn import SampleBlock, SampledTurn
from services.tokenization.block_keys import TOKEN_ID_BYTES
from services.tokenization.segments import common_prefix

MAX_UNPACKED = 16
"""How many turns a reader keeps with their whole prompts."""
WhyMissing: TypeAlias = Literal[
    "failed", "cancelled", "aborted", "refused", "incomplete", "too_large", "lost"
]
"""refused: nothing was decoded; incomplete: some of its tokens did not arrive; too_large: the store
does not take its tokens; lost: they were lost with a process, or the store was away."""


class BegunTurn(Struct, frozen=True, tag="begun"):
    """A turn that has begun. Its record replaces this one."""

    turn: str
    run: int
    """`RolloutState.run`, in which it began."""
    frontend: str
    """Id of the process that writes its record."""
    time: float
    """Unix time of the request."""


class FailedTurn(Struct, frozen=True, tag="failed"):
    """A turn without tokens for a sample."""

    turn: str
    run: int
    why: WhyMissing
    output_tokens: int = 0
    """The tokens that were decoded all the same."""


class StoredTurn(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="turn"):
    """A packed `SampledTurn`. Members without a description are copied from it."""

    turn: str
    run: int
    time: float
    ended: float
    model: str
    client: Client
    reason: FinishReason
    base: str
    """The turn with which its prompt begins; "": none."""
    shared: int
    """How many ids of the base's prompt and output the prompt begins with."""
    prompt: bytes
    """The ids after these (`pack_ids`)."""
    output: bytes
    stop_id: int | None = None
    logprobs: bytes = b""
    """Little-endian float32, NaN for null."""
    blocks: list[SampleBlock] | None = None
    written: list[Text | Call] = []
    opening: str = ""
    answered: int = 0
    """How many of the base's `answers` come before these."""
    answers: list[bytes] = []
    question: list[str] | None = []
    """None: the base's."""
    images: list[PromptImage] = []
    weights: list[WeightsSpan] = []
    experts: str = ""
    newest_weights: int = 0
    """The newest version of the weights of all workers when the turn began; negative: not known."""

    @property
    def output_tokens(self) -> int:
        """The number of its output tokens."""
        return len(self.output) // TOKEN_ID_BYTES

    @property
    def oldest_version(self) -> int | None:
        """The oldest version of the weights that decoded it. Tokens of unknown weights count as of
        the newest ones when it began. None: these are not known."""
        spans = spans_between(self.weights, 0, max(self.output_tokens, 1))
        versions = [
            self.newest_weights if span.version == UNKNOWN_WEIGHTS else span.version
            for span in spans
        ]
        return min((version for version in versions if version >= 0), default=None)


def pack_turn(
    turn: SampledTurn, base: SampledTurn | None, run: int, newest_weights: int = 0
) -> StoredTurn:
    """Packs a turn. `newest_weights`: as in `StoredTurn`.

    `base`: an earlier turn of the same run that is stored, too; the more ids its prompt and output
    share with the turn's prompt, the shorter the result.
    """
    base_id = ""
    shared = answered = 0
    question: list[str] | None = turn.question
    if base is not None:
        base_id = base.id
        shared = len(common_prefix(turn.prompt, base.prompt + base.output))
        answered = _equal(turn.answers, base.answers)
        if turn.question == base.question:
            question = None

    return StoredTurn(
        turn=turn.id,
        run=run,
        time=turn.time,
        ended=turn.ended,
        model=turn.model,
        client=turn.client,
        reason=turn.reason,
        base=base_id,
        shared=shared,
        prompt=pack_ids(turn.prompt[shared:]),
        output=pack_ids(turn.output),
        stop_id=turn.stop_id,
        logprobs=_pack_logprobs(turn.logprobs),
        blocks=turn.blocks,
        written=turn.written,
        opening=turn.opening,
        answered=answered,
        answers=turn.answers[answered:],
        question=question,
        images=turn.images,
        weights=turn.weights,
        experts=turn.experts,
        newest_weights=newest_weights,
    )


def _equal(first: Sequence[bytes], second: Sequence[bytes]) -> int:
    """How many elements are equal at the beginning of both."""
    equal = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        equal += 1
    return equal


def _pack_logprobs(logprobs: Sequence[float | None]) -> bytes:
    packed = array("f", [math.nan if logprob is None else logprob for logprob in logprobs])
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpack_logprobs(data: bytes) -> list[float | None]:
    packed = array("f")
    packed.frombytes(data)
    if sys.byteorder == "big":
        packed.byteswap()
    return [None if math.isnan(logprob) else logprob for logprob in packed]


class StoredTurnReader:
    """Reads the stored turns of one run, each of them after its base."""

    def __init__(self, run: int) -> None:
        self.unreadable: list[str] = []
        """Turns with a base that is missing."""
        self._run = run
        self._stored: dict[str, StoredTurn] = {}
        self._unpacked: LRUCache[str, SampledTurn] = LRUCache(MAX_UNPACKED)

    def read(self, records: Iterable[StoredTurn]) -> Iterator[SampledTurn]:
        """Yields the turns of the next records; those of other runs are left out."""
        for record in records:
            if record.run != self._run or record.turn in self._stored:  # a write may be repeated
                continue
            if record.base and record.base not in self._stored:
                self.unreadable.append(record.turn)
                continue
            self._stored[record.turn] = record
            yield self._unpack(record.turn)

    def _unpack(self, turn: str) -> SampledTurn:
        """Unpacks a turn, and before it those of its bases that are not unpacked."""
        chain = []
        while turn and turn not in self._unpacked:
            chain.append(self._stored[turn])
            turn = chain[-1].base
        base = self._unpacked[turn] if turn else None
        for record in reversed(chain):
            base = self._unpacked[record.turn] = _unpack(record, base)
        assert base is not None
        return base


def _unpack(stored: StoredTurn, base: SampledTurn | None) -> SampledTurn:
    prompt = unpack_array(stored.prompt)
    answers = stored.answers
    question = stored.question or []
    if base is not None:
        prompt = (base.prompt + base.output)[: stored.shared] + prompt
        answers = base.answers[: stored.answered] + answers
        if stored.question is None:
            question = base.question
    return SampledTurn(
        id=stored.turn,
        time=stored.time,
        ended=stored.ended,
        model=stored.model,
        client=stored.client,
        prompt=prompt,
        output=unpack_array(stored.output),
        reason=stored.reason,
        stop_id=stored.stop_id,
        logprobs=_unpack_logprobs(stored.logprobs),
        blocks=stored.blocks,
        written=stored.written,
        opening=stored.opening,
        answers=answers,
        question=question,
        images=stored.images,
        weights=stored.weights,
        experts=stored.experts,
    )
