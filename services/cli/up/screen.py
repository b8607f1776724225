"""Prints the output of `turnwire up`: progress, log lines of the child processes, and how to use
the server.

On a terminal: colours, a spinner, and log lines as text. Elsewhere every line is JSON: those of the
services unchanged, and those of nats-server, of libraries and of `up` itself as events.
"""

import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.status import Status
from rich.text import Text
from typing_extensions import override

from schemas.control import AGENT_TOKENS
from services.cli.connect.client import Target
from services.cli.connect.clients import claude
from services.cli.connect.server import ServedModel
from services.cli.up.plan import UpPlan
from services.cli.up.supervisor import Display
from services.runtime.observability.log_lines import printable, request_text

DEMO_NOTE = (
    "This is the demo: a small rule-based agent that calls real tools. For a real model: --model, "
    "--engine.\n"
)
_SCRIPT_NOTE = (
    "No weights are loaded: the engine is script, the demo's rule-based agent. To decode with the "
    "model: --engine.\n"
)
_OPEN_NOTE = "Everyone who reaches this port may use it: --api-keys-file names the keys.\n"
_FIRST_REQUEST = (
    "  curl -N {url}/v1/messages{key} \\\n"
    """    -d '{{"model":"{model}","max_tokens":500,"stream":true,"""
    """"messages":[{{"role":"user","content":"Hello."}}]}}'"""
)
LONGEST_VALUE = 120
"""Characters of a value in a log line."""
REMIND_S = 10.0
"""Without a terminal, the reason for waiting is repeated at this interval."""
_COLOURS: Mapping[str, str] = {
    "nats": "blue",
    "frontend": "cyan",
    "preprocessor": "green",
    "worker": "magenta",
    "parser": "yellow",
}
_LEVELS: Mapping[str, str] = {
    "debug": "dim",
    "warning": "yellow",
    "error": "bold red",
    "critical": "bold red",
}
_HIDDEN = re.compile("time|level|event|stage|process|exception|evidence|features|lacking|.*_reason")
"""Fields without a place on a terminal, or too long for one; `turnwire doctor` shows the latter."""
_ADDRESS = re.compile(r"turnwire inspect: https?://\S+|listening on \S+ at \S+")
"""The lines with which the inspector reports that it is ready."""
_NATS_INFO = re.compile(r"\[\d+\] (?:\S+ \S+ )?\[(INF|DBG|TRC)\] ")


class ServedModelNotes(Struct, frozen=True):
    """Facts about the served model that decide whether agents can use it."""

    window: int = 0
    """Context window in tokens; 0: unknown."""
    tools: bool = True
    """Whether its chat template lists tools."""

    @property
    def warnings(self) -> list[str]:
        """Why agents cannot work with it; empty if they can."""
        warnings = []
        if not self.tools:
            warnings.append(
                "Its chat template lists no tools: requests with tools get status 400, so agents "
                "cannot work with it.\n"
                "Name a template that lists them (--chat-template), or another model."
            )
        if 0 < self.window < AGENT_TOKENS:
            warnings.append(
                f"Its window of {self.window:,} tokens is too small for coding agents: before "
                "your first word, the\n"
                "prompt of Claude Code has 16,000 tokens. Serve a larger window "
                "(--max-model-len), or another model."
            )
        return warnings


class Screen(Display):
    """Writes progress and logs to stderr."""

    def __init__(self, log_level: str) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._debug = log_level == "debug"
        self.state = ""
        """The state of the last progress bar that a child has written."""

    @override
    def relay(self, name: str, line: str) -> None:
        """Shows a line of a child process; routine lines of nats-server only at log level debug."""
        if _NATS_INFO.match(line) and not self._debug:
            return
        with suppress(OSError):  # a file on a full disk: the line is lost
            if self._console.is_terminal:
                self._console.print(log_text(name, line))
            else:
                print(log_line(name, line), file=sys.stderr, flush=True)

    @override
    def advance(self, name: str, text: str) -> None:
        """Takes the state of a child's progress bar, which the next update of `progress` shows."""
        self.state = f" · {name}: {shorten(text)}"

    @override
    def report(self, text: str, level: str = "info", event: str = "output", **fields: str) -> None:
        """Shows a line of `up` itself. `event` and `fields` are only in JSON."""
        with suppress(OSError):
            if self._console.is_terminal:
                prefix = Text("turnwire up: ", style="bold")
                self._console.print(prefix.append(text, style=f"not bold {_LEVELS.get(level, '')}"))
            else:
                line = _event_line("up", level, text, event, **fields)
                print(line, file=sys.stderr, flush=True)

    @contextmanager
    def progress(self, what: str) -> Iterator["Progress"]:
        """Shows that something takes time."""
        if not self._console.is_terminal:
            yield Progress(self, what)
            return
        with self._console.status(what) as status:
            yield Progress(self, what, status)


class Progress:
    """Shows why something that takes time waits: beside the spinner of a terminal, elsewhere as
    lines."""

    def __init__(self, screen: Screen, what: str, spinner: Status | None = None) -> None:
        self._screen = screen
        self._what = what
        self._spinner = spinner
        self._started = time.monotonic()
        self._reminder = Reminder()

    def update(self, reason: str) -> None:
        """Shows the reason for waiting."""
        seconds = time.monotonic() - self._started
        text = f"{self._what}: {reason} ({seconds:.0f} s){self._screen.state}"
        if self._spinner is not None:
            self._spinner.update(text)
        elif self._reminder.is_due(reason):
            self._screen.report(text)


class Reminder:
    """Decides when a reason for waiting is worth a line: when it is new, and every `REMIND_S`."""

    def __init__(self) -> None:
        self._reason = ""
        self._next = 0.0

    def is_due(self, reason: str) -> bool:
        """Whether the reason is to be shown now."""
        now = time.monotonic()
        if reason == self._reason and now <= self._next:
            return False
        self._reason = reason
        self._next = now + REMIND_S
        return True


def instructions(
    plan: UpPlan,
    urls: Sequence[str],
    model: ServedModelNotes,
    seconds: float,
    program: str,
    *,
    other_urls: Sequence[str] = (),
    metrics_url: str = "",
    inspector_url: str = "",
) -> str:
    """How to use the server, as lines for a shell. `program`: how the shell calls `turnwire`;
    `other_urls`: the first address as other machines may reach it; `metrics_url`, `inspector_url`:
    where both are served, "" if they are not."""
    names = ", ".join(model.name for model in plan.models)
    verb = "are" if len(plan.models) > 1 else "is"
    lines = [f"{names} {verb} served at {' '.join(urls)}  (ready after {seconds:.1f} s)\n"]
    if other_urls:
        lines.append(f"From other machines:  {' or '.join(other_urls)}\n")
    if plan.open_to_others:
        lines.append(_OPEN_NOTE)
    if plan.demo:
        lines.append(DEMO_NOTE)
    elif any(model.worker.engine == "script" for model in plan.models):
        lines.append(_SCRIPT_NOTE)
    lines += ["Try it:\n", _first_request(plan, urls[0]), ""]
    if model.warnings:
        lines += [f"{warning}\n" for warning in model.warnings]
    else:
        lines += _client_settings(plan, urls[0], model, program)
    lines.append(f"See the turns in a browser:  {inspector_url or f'{program} inspect'}")
    lines.append(f"Watch the messages on the bus:  {program} tap")
    if metrics_url:
        lines.append(f"Metrics of all processes:  {metrics_url}")
    lines.append("Ctrl-C ends it.\n")
    return "\n".join(lines)


def _first_request(plan: UpPlan, url: str) -> str:
    """A command that streams a turn."""
    key = ""
    if plan.frontend.api_keys_file:
        key = ' -H "x-api-key: $TURNWIRE_API_KEY"'
    return _FIRST_REQUEST.format(url=url, key=key, model=plan.model)


def _client_settings(plan: UpPlan, url: str, model: ServedModelNotes, program: str) -> list[str]:
    """Lines with the settings of agent clients."""
    keys = plan.frontend.api_keys_file
    certificate = plan.frontend.tls_cert_file
    exports = claude.make_settings(Target(url, ServedModel(plan.model, model.window))).exports
    settings = [f"  export {name}={shlex.quote(value)}" for name, value in exports.items()]
    if keys:
        settings[1] = (
            f'  export ANTHROPIC_AUTH_TOKEN="$TURNWIRE_API_KEY"  # the key to a hash in {keys}'
        )
    if keys and not model.window:
        settings.append(
            "  # Claude Code assumes a window of 1,000,000 tokens; the model's is among:  "
            f"{program} connect claude"
        )
    if certificate:
        settings.append(
            f"  # If your own authority signed {certificate}:  export NODE_EXTRA_CA_CERTS=FILE"
        )
    return [
        "Point Claude Code at it:\n",
        *settings,
        "  claude\n",
        f"Settings for another client:  {program} connect codex",
        f"  all of them:  {program} connect --help\n",
    ]


def log_text(name: str, line: str) -> Text:
    """A log line of a process as coloured text."""
    text = Text(f"{datetime.now():%H:%M:%S} ", style="dim")
    text.append(f"{name:<15}", style=_COLOURS.get(name.partition("-")[0], ""))
    fields = _log_fields(line)
    if fields is None:
        return text.append(line, style="default")
    style = _LEVELS.get(str(fields.get("level", "info")), "default")
    request = request_text(fields)
    if request:
        return text.append(request, style=style)
    text.append(f"{fields['event']!s:<24}", style=style)
    for key, value in fields.items():
        if not _HIDDEN.fullmatch(key) and value is not None:
            text.append(f" {key}=", style="dim").append(shorten(value), style="default")
    if "exception" in fields:
        text.append("\n" + str(fields["exception"]), style="red")
    return text


def log_line(name: str, line: str) -> str:
    """A log line of a process as JSON: unchanged, or a line of something else as an event."""
    if _log_fields(line) is not None:
        return line
    return _event_line(name, "info" if _ADDRESS.fullmatch(line) else "warning", line)


def _event_line(process: str, level: str, text: str, event: str = "output", **fields: str) -> str:
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
    line = {"time": now, "level": level, "event": event, "process": process, **fields, "text": text}
    return msgspec.json.encode(line).decode()


def shorten(value: object) -> str:
    """A value on one line. Cuts the middle out of a long one."""
    if not isinstance(value, str):
        value = msgspec.json.encode(value, enc_hook=str).decode()
    text = printable(value)
    if len(text) <= LONGEST_VALUE:
        return text
    half = LONGEST_VALUE // 2 - 1
    return f"{text[:half]} … {text[-half:]}"


def _log_fields(line: str) -> dict[str, object] | None:
    """The fields of a JSON log line; None for other lines."""
    try:
        fields = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    is_log_line = isinstance(fields, dict) and isinstance(fields.get("event"), str)
    return fields if is_log_line else None
