"""Reads the commands of a page: its blocks of shell, as a reader would type them.

Blocks of ```` ```sh ```` are commands, blocks of ```` ```console ```` commands (behind `$ `) and their output. A comment in
front of a block says what else is to be known, its parts separated by semicolons:

- `<!-- not run: REASON -->`: the block needs something that a test has not.
- ``<!-- not run `BEGINNING`: REASON -->``: so do its commands that begin with these words.
- `<!-- in containers -->`: so does the block: Docker.
- `<!-- file NAME -->`: the block, in any language, is a file that later commands read.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK = re.compile(
    r"^(?:<!-- (?P<note>[^>]*?) -->\n)?```(?P<language>\w+)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_NOT_RUN = re.compile(r"not run(?: `(?P<beginning>[^`]+)`)?: (?P<reason>[^;]+)")


@dataclass
class Command:
    """One command of a page, or a file that the page shows."""

    place: str
    """Page and line of its block."""
    text: str
    """The command; of a file, its content."""
    file: str = ""
    """The file's name."""
    output: list[str] = field(default_factory=list)
    """Lines that a transcript shows."""
    transcript: bool = False
    """Whether the page shows the output; the status is then not said."""
    skipped: str = ""
    """Why it is not run."""


def read_commands(page: Path, name: str) -> Iterator[Command]:
    """The commands of a page, in order. Raises ValueError for a note that is none."""
    text = page.read_text(encoding="utf-8")
    for block in _BLOCK.finditer(text):
        place = f"{name}:{text[: block.start('body')].count(chr(10)) + 1}"
        note, body = block["note"] or "", block["body"]
        reasons = {
            found["beginning"] or "": found["reason"].strip() for found in _NOT_RUN.finditer(note)
        }
        if "in containers" in note:
            reasons[""] = "it needs Docker"
        rest = [part for part in _NOT_RUN.sub("", note).split(";") if part.strip()]
        file = ""
        for part in rest:
            if part.strip().startswith("file "):
                file = part.strip().removeprefix("file ")
            elif part.strip() != "in containers" and block["language"] in ("sh", "console"):
                raise ValueError(f"{place}: what does {part!r} mean?")
        if file:
            yield Command(place, body, file=file)
            continue
        found: list[Command] = []
        if block["language"] == "sh":
            found = [Command(place, line) for line in _logical_lines(body)]
        elif block["language"] == "console":
            found = list(_transcript(place, body))
        for command in found:
            command.skipped = next(
                (why for start, why in reasons.items() if command.text.startswith(start)), ""
            )
            yield command


def _logical_lines(body: str) -> list[str]:
    """Commands without their comments; a backslash continues a line."""
    lines = body.replace("\\\n", " ").splitlines()
    return [bare for line in lines if (bare := _without_comment(line))]


def _without_comment(line: str) -> str:
    """The line up to a `#` that begins a comment, as a shell reads it."""
    lexer = shlex.shlex(line, posix=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    kept: list[str] = []
    for word in lexer:
        if word.startswith("#"):
            break
        kept.append(word)
    return " ".join(kept)


def _transcript(place: str, body: str) -> Iterator[Command]:
    command = None
    for line in body.splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield command
            command = Command(place, line[2:], transcript=True)
        elif command is not None and line.strip() and "…" not in line:
            command.output.append(line)
    if command is not None:
        yield command
