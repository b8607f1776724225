"""What child processes write, for a person or for a program.

Services log JSON lines when they do not write to a terminal. A person sees them as text, with the process in front;
a program gets them as they are.
"""

import re
from collections.abc import Mapping

import msgspec
from rich.text import Text

COLOURS: Mapping[str, str] = {
    "nats": "blue",
    "frontend": "cyan",
    "preprocessor": "green",
    "worker": "magenta",
    "parser": "yellow",
}
_LEVELS: Mapping[str, str] = {"debug": "dim", "warning": "yellow", "error": "bold red", "critical": "bold red"}
_SILENT = frozenset({"time", "level", "event", "stage", "process", "exception"})
_NATS_LINE = re.compile(r"\[\d+\] (?:\S+ \S+ )?\[(INF|DBG|TRC)\] ")


def parsed(line: str) -> dict[str, object] | None:
    """A JSON log line's fields; None for any other line."""
    if not line.startswith("{"):
        return None
    try:
        fields = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    return fields if isinstance(fields, dict) and isinstance(fields.get("event"), str) else None


def is_chatter(line: str) -> bool:
    """Whether a line is nats-server's own small talk."""
    return bool(_NATS_LINE.match(line))


def for_people(name: str, line: str) -> Text:
    """One line as text in colour."""
    text = Text(f"{name:<15}", style=COLOURS.get(name.partition("-")[0], ""))
    fields = parsed(line)
    if fields is None:
        return text.append(line, style="default")
    level = str(fields.get("level", "info"))
    text.append(f"{fields['event']!s:<24}", style=_LEVELS.get(level, "default"))
    for key, value in fields.items():
        if key not in _SILENT and value is not None:
            text.append(f" {key}=", style="dim").append(short(value), style="default")
    if "exception" in fields:
        text.append("\n" + str(fields["exception"]), style="red")
    return text


def for_programs(name: str, line: str) -> str:
    """One line as it is, if it says itself who wrote it; with the name in front otherwise."""
    return line if parsed(line) is not None else f"{name} | {line}"


def short(value: object, limit: int = 120) -> str:
    """A value on one line, cut in the middle where it is long."""
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
    text = text.replace("\n", "\\n")
    half = limit // 2 - 1
    return text if len(text) <= limit else f"{text[:half]} … {text[-half:]}"
