"""`turnwire tap`: watch the bus. Everything, some subjects, or one turn from the request to its last event."""

import argparse
import asyncio
import base64
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, Any

import msgspec
from rich.console import Console
from rich.text import Text

from schemas import subjects
from schemas.errors import TurnwireError
from schemas.frames import TurnRequest
from services.cli import bus_view
from services.cli.bus_view import Line
from services.cli.replay.recorder import Recorder
from services.runtime.bus import Bus, Message
from services.runtime.config import BusConfig, ServiceConfig
from services.runtime.config_flags import add_config_flag, add_flags, load_or_exit, parse_arguments
from services.runtime.config_sources import shown
from services.runtime.telemetry import open_log

COLOURS = {"turn": "cyan", "gen": "green", "tok": "magenta", "evt": "yellow", "cancel": "red", "replay": "red"}


class Recorded(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message as `--json` shows it: a line of JSON. `payload` where it is JSON, else `payload_b64`."""

    time: float
    """Unix time of arrival in seconds."""
    subject: str
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    payload_b64: str | None = None


def main(argv: Sequence[str]) -> int:
    """Watches until Ctrl-C; status 1 where the bus cannot be reached or is lost."""
    parser = argparse.ArgumentParser(prog="turnwire tap", allow_abbrev=False, description=__doc__)
    parser.add_argument("subject", nargs="*", help=f"subjects, with wildcards [default: {subjects.ALL}]")
    parser.add_argument("--request", metavar="ID", help="only what concerns this turn: its id, or a part of it")
    parser.add_argument("--all", action="store_true", help="heartbeats and credit, too")
    parser.add_argument("--json", action="store_true", help="whole messages, one JSON object a line")
    parser.add_argument(
        "--record", metavar="FILE", help="append each turn to FILE when it has ended, for `turnwire replay`"
    )
    parser.add_argument(
        "--redact", action="store_true", help="with --record: make letters x and digits 0, leave out ids"
    )
    add_config_flag(parser)
    add_flags(parser, BusConfig)
    arguments = parse_arguments(parser, argv)
    config: BusConfig = load_or_exit(BusConfig, "turnwire tap", arguments, os.environ).config
    try:
        with open_record(arguments.record) as record:
            return asyncio.run(watch(config, arguments, record))
    except (TurnwireError, OSError) as error:
        print(f"turnwire tap: {shown(error)}", file=sys.stderr)
        return 1


@contextmanager
def open_record(path: str | None) -> Iterator[IO[bytes] | None]:
    """A file to record into: its owner's alone, for it holds what users say. Raises OSError."""
    if path is None:
        yield None
        return
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
        if file.tell() == 0:
            file.write(Recorder.head())
        yield file


async def watch(config: BusConfig, arguments: argparse.Namespace, record: IO[bytes] | None) -> int:
    """Shows messages as they come, until a signal (status 0) or the loss of the bus (1)."""
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(status: int) -> None:
        if not ended.done():
            ended.set_result(status)

    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, end, 0)
    wanted = arguments.subject or [subjects.ALL]
    tap = Tap(Console(highlight=False, soft_wrap=True), arguments, record, on_broken_pipe=lambda: end(0))
    bus = Bus(
        config,
        name="turnwire/tap",
        inbox_prefix="_INBOX_tap",
        log=open_log(ServiceConfig(log_level="warning")),
        on_fatal=lambda _reason: end(1),
        on_reconnect=lambda: None,
    )
    await bus.connect()
    try:
        for subject in wanted:
            await bus.subscribe(subject, tap.take)
        await bus.flush()  # from here on nothing is missed
        print(f"listening on {', '.join(wanted)} at {shown(config.nats_url)}", file=sys.stderr)
        return await ended
    finally:
        await bus.close()
        if tap.unfinished:
            print(f"{tap.unfinished} turns were not recorded: their end has not come", file=sys.stderr)


class Tap:
    """Takes messages; shows and records those that are wanted."""

    def __init__(
        self,
        console: Console,
        arguments: argparse.Namespace,
        record: IO[bytes] | None,
        on_broken_pipe: Callable[[], None],
    ) -> None:
        self._console = console
        self._request: str | None = arguments.request
        self._upkeep: bool = arguments.all or bool(arguments.subject)
        self._json: bool = arguments.json
        self._record = record
        self._recorder = Recorder(redact=arguments.redact)
        self._on_broken_pipe = on_broken_pipe

    def take(self, message: Message) -> None:
        """One message of the bus."""
        now = datetime.now(UTC)
        kind = bus_view.kind_of(message.subject)
        try:
            decoded = bus_view.decode(message.subject, message.data)
            lines = bus_view.lines(message.subject, decoded)
            self._keep(decoded, now)
        except (msgspec.MsgspecError, ValueError) as error:
            lines = [Line(kind, bus_view.target_of(message.subject), "", f"cannot be read: {error}")]
        if self._request is not None:
            lines = [line for line in lines if concerns(line.turn, self._request)]
        elif kind in bus_view.UPKEEP and not self._upkeep:
            return
        if not lines:
            return
        try:
            self._show(now, message, lines)
        except (BrokenPipeError, SystemExit):  # rich makes the one into the other
            self._on_broken_pipe()

    @property
    def unfinished(self) -> int:
        """Turns that would have been recorded."""
        return self._recorder.unfinished if self._record is not None else 0

    def _keep(self, decoded: Any, now: datetime) -> None:
        if self._record is None:
            return
        turn = getattr(decoded, "turn", None)
        if isinstance(decoded, TurnRequest) and self._request is not None and not concerns(turn or "", self._request):
            return
        for text in self._recorder.take(decoded, now.timestamp()):
            self._record.write(text)
            self._record.flush()

    def _show(self, now: datetime, message: Message, lines: list[Line]) -> None:
        if self._json:
            encoded = msgspec.json.encode(recorded(now.timestamp(), message.subject, message.data))
            self._console.file.write(encoded.decode() + "\n")
            self._console.file.flush()
            return
        for line in lines:
            self._console.print(rendered(now.astimezone(), line))


def concerns(turn: str, wanted: str) -> bool:
    """Whether a turn is the wanted one: by its id, a part of it (four characters or more), or an id made of it."""
    return bool(turn) and (turn == wanted or (len(wanted) >= 4 and (wanted in turn or turn in wanted)))


def recorded(time: float, subject: str, data: bytes) -> Recorded:
    """A message as a program gets it."""
    try:
        msgspec.json.decode(data)
    except msgspec.DecodeError:
        return Recorded(time, subject, payload_b64=base64.b64encode(data).decode())
    return Recorded(time, subject, payload=msgspec.Raw(data))


def rendered(time: datetime, line: Line) -> Text:
    """A line for people."""
    colour = COLOURS.get(line.kind, "dim")
    text = Text(f"{time:%H:%M:%S}.{time.microsecond // 1000:03} ", style="dim")
    text.append(f"{line.kind:<10}", style=colour)
    text.append(f"{line.target} ", style="dim")
    if line.turn:
        text.append(f"{line.turn} ", style="bold")
    return text.append(line.text)
