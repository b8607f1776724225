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

REPEAT_S = 1.0
"""Interval between two lines about something that anyone can cause."""
EVERY_S = 0.05
"""Interval between writes of ordinary lines; a killed process may lose those of one interval."""

LOST_LINES = '\n{{"level":"error","event":"log.lines_lost","lines":{}}}\n'
"""Follows a gap. What was written before it may end within a line."""


def printable(text: str) -> str:
    """The text with escaped control characters: clients choose paths and names, and terminals obey
    them."""
    if text.isprintable():
        return text
    return "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def request_text(fields: Mapping[str, Any]) -> str:
    """The log line of a request as text of at most 96 columns; "" for another line."""
    try:
        status = fields["status"] or fields["outcome"]
        text = "{method} {path:.25} {0}  {seconds:.2f} s".format(status, **fields)
        if "output_tokens" in fields:
            text += _tokens_text(fields)
        if "requested_model" in fields:
            refused = "not allowed:" if "reason" in fields else "no"
            text += f", {refused} model {fields['requested_model']}"
        id_part = fields["request"][4:12]  # that `turnwire tap --request` finds
        return printable(f"{text:.86}  {id_part}")
    except (LookupError, ArithmeticError, TypeError, ValueError):
        return ""


def _tokens_text(fields: Mapping[str, Any]) -> str:
    """The tokens of an answer as text. One that was given up lacks what came no more."""
    text = "  {prompt_tokens}+{output_tokens} tokens".format_map(fields)
    if "ttft" in fields:
        text = f", first {fields['ttft']:.2f} s" + text
    if "cached_tokens" in fields:
        text += f", {fields['cached_tokens'] / fields['prompt_tokens']:.0%} cached"
    return text


class RateLimit:
    """Lets one line in `every_s` through, and counts the others."""

    def __init__(self, every_s: float = REPEAT_S) -> None:
        self._every_s = every_s
        self._next = 0.0
        self._left_out = 0

    def admit(self) -> int | None:
        """How many lines were left out since the last one; None: this one is left out, too."""
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
            self._stream.flush()  # lines that a full disk did not take
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
