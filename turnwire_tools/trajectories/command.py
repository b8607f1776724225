"""`turnwire trajectories`: turns recorded or live messages of the bus into one training sample a
session, as JSONL."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from schemas import subjects
from schemas.frames import TokenFinish
from schemas.requests import ParseContext
from services.cli.instances import load_bus
from services.cli.registry import BUS_SETTINGS, Command
from services.cli.signals import run
from services.rollouts.sampled_turn import SampleBlock, SampledTurn, answer_digests, question_of
from services.rollouts.samples import Sampler
from services.runtime.config.base import Seconds
from services.runtime.config.loader import Sources
from services.runtime.config.service import BusConfig
from services.runtime.nats.bus import Delivery
from services.tokenization.detokenizer import Vocabulary
from services.tokenization.tokenizer_files import load_backend
from turnwire_tools.tap import messages
from turnwire_tools.tap.follow import follow
from turnwire_tools.tap.turns import FollowedTurn, TurnFollower
from turnwire_tools.trajectories.blocks import blocks_of

FLUSH_S = 1.0
"""How often sessions that have gone quiet are looked for."""


@dataclass(frozen=True, kw_only=True)
class TrajectoryFlags:
    """The flags of `turnwire trajectories`."""

    model: str | None = None
    """Directory or hub id of the served model: its tokenizer gives the boundaries of blocks."""
    idle_s: Seconds = 600.0
    """Seconds without a turn after which a session is written; all are written at the end."""


def trajectories(
    sources: Sources,
    /,
    *file: Path,
    flags: Annotated[TrajectoryFlags, Parameter(name="*")] = TrajectoryFlags(),
) -> int:
    """Writes each session's tokens as a line of JSON: ids, loss mask, log probabilities, blocks.

    Without a file it follows the bus until Ctrl-C.

    Args:
        file: Messages that `turnwire tap --json` wrote; several files are read as one.
    """
    vocabulary = None
    if flags.model is not None:
        vocabulary = Vocabulary(load_backend(flags.model, trust_remote_code=False))
    writer = Writer(vocabulary, flags.idle_s)
    if not file:
        config = load_bus(sources)
        return run(_follow(config, writer))

    for path in file:
        with path.open("rb") as lines:
            for now, _, message in messages.read_lines(str(path), lines):
                writer.take(message, now)
    writer.end()
    return 0


COMMAND = Command(trajectories, (BusConfig,), essential=BUS_SETTINGS)


class Writer:
    """Takes messages of the bus, and writes samples to stdout."""

    def __init__(self, vocabulary: Vocabulary | None, idle_s: float) -> None:
        self._vocabulary = vocabulary
        self._idle_s = idle_s
        self._turns = TurnFollower(whole=True)
        self._dropped = 0
        self._samples = Sampler()
        self._flushed = 0.0

    def take(self, message: Any, now: float) -> None:
        """Takes a message that came at this Unix time, None for one of no turn.

        Once a second, it writes the sessions that have been quiet; heartbeats come as often.
        """
        for turn in self._turns.take(message, now):
            if turn.is_sequence:
                self._samples.add(self._sampled(turn, now))
            else:
                self._dropped += 1
        if now - self._flushed >= FLUSH_S:
            self._flushed = now
            self._write(now - self._idle_s)

    def _sampled(self, turn: FollowedTurn, ended: float) -> SampledTurn:
        """A turn that is one sequence."""
        sampled = sampled_turn(turn, ended)
        if self._vocabulary is not None and turn.context is not None:
            sampled.blocks = _blocks(sampled, turn.context, self._vocabulary)
        return sampled

    def end(self) -> None:
        """Writes all sessions."""
        self._write(float("inf"))
        dropped = self._dropped + self._turns.cancelled
        unfinished = self._turns.unfinished
        if dropped or unfinished:
            text = (
                f"{dropped} turns failed or were cancelled, {unfinished} have not ended: left out"
            )
            print(text, file=sys.stderr)

    def _write(self, before: float) -> None:
        for sample in self._samples.close(before):
            sys.stdout.write(msgspec.json.encode(sample).decode() + "\n")
        sys.stdout.flush()


async def _follow(config: BusConfig, writer: Writer) -> int:
    def take(delivery: Delivery) -> None:
        writer.take(messages.of_turn(delivery.subject, delivery.data), time.time())

    try:
        # One subscription, which keeps the order of all messages.
        return await follow(config, "trajectories", [subjects.ALL], take)
    finally:
        writer.end()


def sampled_turn(turn: FollowedTurn, ended: float) -> SampledTurn:
    """A turn that is one sequence (`is_sequence`) and has ended at this Unix time, without its
    blocks."""
    assert turn.reason is not None
    opening = ""
    if turn.context is not None and turn.context.ledger is not None:
        opening = turn.context.ledger.opening
    return SampledTurn(
        id=turn.id,
        time=turn.time,
        ended=ended,
        model=turn.conversation.model,
        client=turn.conversation.client,
        prompt=turn.prompt,
        output=turn.output,
        reason=turn.reason,
        stop_id=turn.stop_id,
        logprobs=turn.logprobs,
        written=turn.written,
        opening=opening,
        answers=answer_digests(turn.conversation),
        question=question_of(turn.conversation),
        images=turn.images,
        weights=turn.weights,
        experts=turn.experts,
    )


def _blocks(turn: SampledTurn, context: ParseContext, vocabulary: Vocabulary) -> list[SampleBlock]:
    ids = turn.output
    if turn.stop_id is not None:
        ids = ids[:-1]
    return blocks_of(turn.id, context, ids, TokenFinish(turn.reason, turn.stop_id), vocabulary)
