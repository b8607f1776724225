"""Writes log lines to a stream: single lines at once, bursts together. Shortens those of requests
for people.

Each write to a pipe wakes its reader. A frontend logs a line for every request; waking `turnwire
up` for each would take 0.1 to 0.2 ms of CPU per request, on another core.
"""

import asyncio
import atexit
import threading
import time
from collections.abc import Mapping
from typing import Any, TextIO

import msgspec
from msgspec import Struct

REQUEST_COLUMNS = 96
"""With time and process before it, the line of a request fits into 120 columns."""
REQUEST_ID = 10
"""Characters of a request's id that are shown: enough for `turnwire tap --request`."""
USUAL_OUTCOMES = ("ok", "stop", "tool_calls")
REPEAT_S = 1.0
"""Interval between two lines about something that anyone can cause."""
EVERY_S = 0.05
"""Interval between writes of ordinary lines; a killed process may lose those of one interval."""

LOST_LINES = '\n{{"level":"error","event":"log.lines_lost","lines":{}}}\n'
"""Follows a gap. What was written before it may end within a line."""


def printable(text: str) -> str:
    """Returns the text with escaped control characters: clients choose paths and names, and
    terminals obey them."""
    if text.isprintable():
        return text
    return "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


class RequestLine(Struct):
    """The fields of a request's log line that people look at."""

    method: str
    path: str
    outcome: str
    request: str
    seconds: float
    status: int | None = None
    ttft: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    output_tokens: int | None = None

    def __str__(self) -> str:
        text = f" {self.status or '-'}"
        if self.outcome not in USUAL_OUTCOMES:
            text += f" {self.outcome}"
        text += f"  {self.seconds:.2f} s"
        if self.ttft is not None:
            text += f", first {self.ttft:.2f} s"
        if self.prompt_tokens and self.output_tokens is not None:
            share = self.cached_tokens / self.prompt_tokens
            text += f"  {self.prompt_tokens}+{self.output_tokens} tokens, {share:.0%} cached"
        text += f"  {self.request[:REQUEST_ID]}"
        room = REQUEST_COLUMNS - len(self.method) - 1 - len(text)
        path = self.path
        if len(path) > room:
            path = path[: max(room - 1, 1)] + "…"
        return printable(f"{self.method} {path}{text}")


def request_text(fields: Mapping[str, Any]) -> str | None:
    """Returns the log line of a request as text, at most `REQUEST_COLUMNS` wide; None for another
    line."""
    if fields.get("event") != "request":
        return None
    try:
        return str(msgspec.convert(fields, RequestLine))
    except msgspec.ValidationError:
        return None


class RateLimit:
    """Lets one line in `every_s` through, and counts the others."""

    def __init__(self, every_s: float = REPEAT_S) -> None:
        self._every_s = every_s
        self._next = 0.0
        self._left_out = 0

    def admit(self) -> int | None:
        """Returns how many lines were left out since the last one; None: this one is left out,
        too."""
        now = time.monotonic()
        if now < self._next:
            self._left_out += 1
            return None
        left_out = self._left_out
        self._left_out = 0
        self._next = now + self._every_s
        return left_out


class LineWriter:
    """The logger that structlog wraps. Thread-safe. Lines keep their order; one of level warning or
    above is written at once, with all before it.

    A stream that takes nothing, as a file on a full disk, never fails its process: the lines are
    lost, and their number follows as soon as there is room.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: list[str] = []
        self._last = -EVERY_S
        self._timer: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        self._lost = 0
        atexit.register(self._late)

    def info(self, line: str) -> None:
        """Writes a line within `EVERY_S`."""
        with self._lock:
            self._lines.append(line)
            if self._timer is not None:
                return
            wait = self._last + EVERY_S - time.monotonic()
            loop = _running_loop() if wait > 0 else None
            if loop is not None:
                self._timer = loop.call_later(wait, self._late)
                return
            self._write()

    def warning(self, line: str) -> None:
        """Writes a line at once."""
        with self._lock:
            self._lines.append(line)
            self._write()

    debug = msg = info
    error = critical = exception = fatal = warn = warning

    def _late(self) -> None:
        with self._lock:
            self._timer = None
            self._write()

    def _write(self) -> None:
        if not self._lines:
            return
        lines = self._lines
        self._lines = []
        self._last = time.monotonic()
        try:
            self._stream.flush()  # of what a full disk did not take
            if self._lost:
                self._stream.write(LOST_LINES.format(self._lost))
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()
            self._lost = 0
        except (OSError, ValueError):  # a full disk, or the reader has ended
            self._lost += len(lines)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
