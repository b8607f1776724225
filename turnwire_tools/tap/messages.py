"""Decodes messages on the bus, live or from the lines that `turnwire tap --json` wrote. Pure."""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from schemas import control, frames, ledger, requests, subjects
from services.cli.common import UsageError

TYPES: Mapping[str, type[Struct]] = {
    "turn": requests.TurnRequest,
    "count": requests.CountRequest,
    "tokenize": requests.TokenizeRequest,
    "detokenize": requests.DetokenizeRequest,
    "gen": requests.GenerateRequest,
    "tok": frames.TokenFrame,
    "evt": frames.EventFrame,
    "cancel": control.Cancel,
    "replay": control.Replay,
    "credit": control.Credit,
    "beat": control.Heartbeat,
    "kv": control.KvUpdate,
    "ledger": ledger.LedgerEntry,
}
"""The type of the messages on `tw.v2.<kind>.…`."""
TURN_KINDS = frozenset({"turn", "gen", "tok", "evt", "cancel", "replay"})
"""Kinds that belong to turns."""
MAX_SKEW_S = 3600.0
"""Clocks that differ by more are not credible."""


class MessageLine(Struct, frozen=True, omit_defaults=True):
    """One message as a line of `turnwire tap --json`. `payload` where it is JSON, else
    `payload_b64`."""

    time: float
    """Unix time of arrival in seconds."""
    subject: str
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    payload_b64: str | None = None


_of_a_release = re.compile(r"tw\.v\d+\.").match
_decode_line = msgspec.json.Decoder(MessageLine).decode


def kind_of(subject: str) -> str:
    """The kind in a subject; "" for a subject of another program."""
    prefix = subjects.PREFIX + "."
    if not subject.startswith(prefix):
        return ""
    return subject.removeprefix(prefix).partition(".")[0]


def target_of(subject: str) -> str:
    """The rest of a subject, unescaped."""
    try:
        return " ".join(subjects.unescape(part) for part in subject.split(".")[3:])
    except ValueError:
        return subject


def receiver_of(subject: str) -> str:
    """The last part of a subject: the process that a message goes to."""
    return target_of(subject).rpartition(" ")[2]


def decode(subject: str, data: bytes) -> Any:
    """The message as its type; as plain JSON where the subject has none. Raises
    msgspec.MsgspecError."""
    kind = kind_of(subject)
    if kind == "gen":
        return requests.decode_generate(data)
    return msgspec.json.decode(data, type=TYPES.get(kind, Any))


def sent_at(message: Any, arrival: float) -> float:
    """When a process sent a message, by its clock: Unix time in seconds. The time of arrival stands
    in for a message without one, and for a clock that is not credible."""
    sent = float(getattr(message, "time", 0.0))
    is_credible = sent > 0 and abs(sent - arrival) < MAX_SKEW_S
    return sent if is_credible else arrival


def of_turn(subject: str, data: bytes) -> Any:
    """The message, if it belongs to a turn and can be read; else None."""
    if kind_of(subject) in TURN_KINDS:
        with suppress(msgspec.MsgspecError, ValueError):
            return decode(subject, data)
    return None


def line_of(time: float, subject: str, data: bytes) -> MessageLine:
    """A message as a line."""
    try:
        if kind_of(subject) == "gen":
            data = msgspec.json.encode(requests.decode_generate(data))
        msgspec.json.decode(data)
    except msgspec.DecodeError:
        return MessageLine(time, subject, payload_b64=base64.b64encode(data).decode())
    return MessageLine(time, subject, payload=msgspec.Raw(data))


def read_lines(name: str, lines: Iterable[bytes]) -> Iterator[tuple[float, str, Any]]:
    """Time, subject and message of each line that belongs to a turn. `name`: of the file.

    Raises UsageError, which names the line, for one that `turnwire tap --json` did not write, or
    that of a release with other messages did.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            message = _decode_line(line)
            if _of_a_release(message.subject) and not kind_of(message.subject):
                text = (
                    f"{message.subject} is from another release of Turnwire; this one reads "
                    f"{subjects.ALL}"
                )
                raise UsageError(f"{name}:{number}: {text}")
            if message.payload is not msgspec.UNSET and kind_of(message.subject) in TURN_KINDS:
                yield message.time, message.subject, decode(message.subject, bytes(message.payload))
        except msgspec.MsgspecError as error:
            raise UsageError(
                f"{name}:{number}: not a line of `turnwire tap --json`: {error}"
            ) from None
