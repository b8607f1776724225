"""`turnwire tap`: shows the messages on the bus: all, some subjects, or one turn from its request
to its last event."""

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from schemas import subjects
from schemas.requests import TurnRequest
from services.cli.common import append_to_file
from services.cli.instances import load_bus
from services.cli.registry import BUS_SETTINGS, Command
from services.cli.signals import run
from services.runtime.config.loader import Sources
from services.runtime.config.service import BusConfig
from services.runtime.nats.bus import Delivery
from turnwire_tools.tap import bus_view, messages
from turnwire_tools.tap.bus_view import Line
from turnwire_tools.tap.follow import check_subjects, follow
from turnwire_tools.tap.recorder import BusRecorder
from turnwire_tools.tap.turns import concerns

COLOURS = {
    "turn": "cyan",
    "gen": "green",
    "tok": "magenta",
    "evt": "yellow",
    "cancel": "red",
    "replay": "red",
}
EARLIER = "only what comes from now on; earlier turns are in a running turnwire inspect"


@dataclass(frozen=True, kw_only=True)
class TapFlags:
    """The flags of `turnwire tap`."""

    request: str | None = None
    """Show only messages of this turn from now on: its id, or a part of it."""
    all: bool = False
    """Show also heartbeats, flow control and KV cache updates."""
    json: bool = False
    """Print whole messages, one JSON object a line."""
    record: str | None = None
    """File to append each turn to when it has ended, for `turnwire replay`."""
    redact: bool = False
    """With --record: replace letters by x and digits by 0, and leave out token ids."""


def tap(
    sources: Sources, /, *subject: str, flags: Annotated[TapFlags, Parameter(name="*")] = TapFlags()
) -> int:
    """Shows the messages on the bus, decoded, until Ctrl-C.

    Args:
        subject: Subjects to show, with wildcards; default: all of Turnwire's.
    """
    shown = subject or [subjects.ALL]
    check_subjects(shown)
    config = load_bus(sources)
    upkeep = flags.all or bool(subject)

    async def note() -> None:
        if flags.request is not None:
            print(EARLIER, file=sys.stderr)

    if flags.record is None:
        viewer = Tap(flags, upkeep, None)
        return run(follow(config, "tap", shown, viewer.take, on_listening=note))

    # Only its owner can read a recording, since it contains users' texts.
    with append_to_file(Path(flags.record)) as record:
        if record.tell() == 0:
            record.write(BusRecorder.head())
        viewer = Tap(flags, upkeep, record)
        status = run(follow(config, "tap", shown, viewer.take, on_listening=note))
    if viewer.recorder.unfinished:
        print(
            f"{viewer.recorder.unfinished} turns were not recorded: they have not ended",
            file=sys.stderr,
        )
    return status


COMMAND = Command(tap, (BusConfig,), essential=BUS_SETTINGS)


class Tap:
    """Shows and records the messages that the flags choose."""

    def __init__(self, flags: TapFlags, upkeep: bool, record: IO[bytes] | None) -> None:
        """`upkeep`: show messages that belong to no turn."""
        self._flags = flags
        self._upkeep = upkeep
        self._record = record
        self._console = Console(highlight=False, soft_wrap=True)
        self.recorder = BusRecorder(redact=flags.redact)

    def take(self, message: Delivery) -> None:
        """Shows and records one message of the bus."""
        now = datetime.now(UTC)
        kind = messages.kind_of(message.subject)
        try:
            decoded = messages.decode(message.subject, message.data)
            lines = bus_view.lines(message.subject, decoded)
            self._record_turns(decoded, now, messages.receiver_of(message.subject))
        except (msgspec.MsgspecError, ValueError) as error:
            lines = [
                Line(kind, messages.target_of(message.subject), "", f"cannot be read: {error}")
            ]
        if self._flags.request is not None:
            lines = [line for line in lines if concerns(line.turn, self._flags.request)]
        elif kind in bus_view.UPKEEP and not self._upkeep:
            return
        if lines:
            self._show(now, message, lines)

    def _record_turns(self, decoded: Any, now: datetime, receiver: str) -> None:
        if self._record is None or self._is_left_out(decoded):
            return
        sent = messages.sent_at(decoded, now.timestamp())
        for text in self.recorder.take(decoded, sent, receiver):
            self._record.write(text)
            self._record.flush()

    def _is_left_out(self, decoded: Any) -> bool:
        """Whether it is the request of a turn that is not recorded, and so not followed."""
        only = self._flags.request
        if only is None or not isinstance(decoded, TurnRequest):
            return False
        return not concerns(decoded.turn, only)

    def _show(self, now: datetime, message: Delivery, lines: list[Line]) -> None:
        if self._flags.json:
            line = messages.line_of(now.timestamp(), message.subject, message.data)
            self._console.file.write(msgspec.json.encode(line).decode() + "\n")
            self._console.file.flush()
            return
        for text in lines:
            self._console.print(rendered(now.astimezone(), text))


def rendered(time: datetime, line: Line) -> Text:
    """Formats a line for a terminal."""
    colour = COLOURS.get(line.kind, "dim")
    text = Text(f"{time:%H:%M:%S}.{time.microsecond // 1000:03} ", style="dim")
    text.append(f"{line.kind:<10}", style=colour)
    text.append(f"{line.target} ", style="dim")
    if line.turn:
        text.append(f"{line.turn} ", style="bold")
    return text.append(line.text)
