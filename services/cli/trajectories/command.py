"""`turnwire trajectories`: turns recorded or live messages of the bus into one training sample a session, as JSONL."""

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from schemas import subjects
from schemas.errors import TurnwireError
from services.cli.observer import follow
from services.cli.running import bus_defaults
from services.cli.tap import bus_view
from services.cli.tap.command import Recorded
from services.cli.trajectories.blocks import blocks_of
from services.cli.trajectories.samples import Sampler
from services.cli.trajectories.turns import TurnFollower
from services.parser.service import load_backend
from services.runtime.bus import Message
from services.runtime.config import BusConfig
from services.runtime.config.loader import Sources, mask_passwords
from services.tokenization.detokenizer import Vocabulary

KINDS = ("turn", "gen", "tok", "evt", "cancel")
"""Of the messages that are needed."""
FLUSH_S = 1.0
"""How often sessions that have gone quiet are looked for."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags of `turnwire trajectories`."""

    model: str | None = None
    """Directory or hub id of the served model, whose tokenizer gives the boundaries of blocks; default: none given."""
    idle_s: float = 600.0
    """A session is written when it has been quiet for so long, and at the end."""


def trajectories(sources: Sources, /, *file: Path, flags: Annotated[Flags, Parameter(name="*")] = Flags()) -> int:
    """Writes each session's tokens as a line of JSON: ids, loss mask, log probabilities, blocks.

    Without a file it follows the bus until Ctrl-C.

    Args:
        file: Messages that `turnwire tap --json` wrote; several files are read as one.
    """
    try:
        vocabulary = None if flags.model is None else Vocabulary(load_backend(flags.model, trust_remote_code=False))
        writer = Writer(vocabulary, flags.idle_s)
        if not file:
            return asyncio.run(_follow(sources.load(BusConfig, bus_defaults(sources.env)).config, writer))
        for path in file:
            _read(path, writer)
        writer.end()
    except (TurnwireError, OSError, ValueError) as error:
        print(f"turnwire trajectories: {mask_passwords(error)}", file=sys.stderr)
        return 1
    return 0


class Writer:
    """Takes messages of the bus, and writes samples to stdout."""

    def __init__(self, vocabulary: Vocabulary | None, idle_s: float) -> None:
        self._vocabulary = vocabulary
        self._idle_s = idle_s
        self._turns = TurnFollower()
        self._samples = Sampler()
        self._flushed = 0.0

    def take(self, subject: str, data: bytes, now: float) -> None:
        """Takes a message that came at this Unix time. Raises msgspec.MsgspecError for one that cannot be read."""
        if bus_view.kind_of(subject) not in KINDS:
            return
        for turn in self._turns.take(bus_view.decode(subject, data), now):
            blocks = None if self._vocabulary is None else blocks_of(turn, self._vocabulary)
            self._samples.add(turn, blocks, now)
        if now - self._flushed >= FLUSH_S:
            self.flush(now)

    def flush(self, now: float) -> None:
        """Writes the sessions that have been quiet."""
        self._flushed = now
        self._write(now - self._idle_s)

    def end(self) -> None:
        """Writes all sessions."""
        self._write(float("inf"))
        turns = self._turns
        if turns.dropped or turns.unfinished:
            text = f"{turns.dropped} turns failed or were cancelled, {turns.unfinished} have not ended: left out"
            print(text, file=sys.stderr)

    def _write(self, before: float) -> None:
        for sample in self._samples.close(before):
            sys.stdout.write(msgspec.json.encode(sample).decode() + "\n")
        sys.stdout.flush()


def _read(path: Path, writer: Writer) -> None:
    """Reads a recording. Raises ValueError for a line that is none of `turnwire tap --json`."""
    decode = msgspec.json.Decoder(Recorded).decode
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                message = decode(line)
                if message.payload is not msgspec.UNSET:
                    writer.take(message.subject, bytes(message.payload), message.time)
            except msgspec.MsgspecError as error:
                raise ValueError(f"{path}:{number}: not a line of `turnwire tap --json`: {error}") from None


async def _follow(config: BusConfig, writer: Writer) -> int:
    def take(message: Message) -> None:
        try:
            writer.take(message.subject, message.data, time.time())
        except (msgspec.MsgspecError, ValueError) as error:
            print(f"turnwire trajectories: {message.subject} cannot be read: {error}", file=sys.stderr)

    try:
        # One subscription, which keeps the order of all messages.
        return await follow(config, "trajectories", [subjects.ALL], take, lambda: writer.flush(time.time()))
    finally:
        writer.end()
