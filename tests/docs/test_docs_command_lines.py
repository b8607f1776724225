"""Parses every command line of `turnwire` in README.md and docs/, also of blocks that are not run:
its command, its flags and their choices."""

import functools
import re
import shlex
from collections.abc import Iterator

import pytest

from services.cli.registry import load_command
from services.runtime.config.command_line import CommandFunction, run_command
from services.runtime.config.tables import STAGES
from tests.docs.test_docs_commands import ALL

_ASSIGNMENT = re.compile(r"[A-Za-z_]+=.*", re.DOTALL)
_ANGLES = re.compile(r"\d*[<>]+")


def command_lines(text: str) -> Iterator[list[str]]:
    """The arguments of each `turnwire` in a line of shell; those of `make up` are in ARGS."""
    lexer = shlex.shlex(text.replace("\n", " "), posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        listed = [*lexer, ";"]
    except ValueError:  # a JSON document with an apostrophe
        return
    for word in listed:
        if set(word) <= set("|&;()"):
            yield from _arguments(words)
            words = []
        else:
            words.append(word)


def _arguments(words: list[str]) -> Iterator[list[str]]:
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]
    angle = next((at for at, word in enumerate(words) if _ANGLES.fullmatch(word)), len(words))
    words = words[:angle]
    if words[:2] == ["make", "up"]:
        typed = " ".join(word.removeprefix("ARGS=") for word in words[2:])
        yield ["up", *shlex.split(typed)]
    elif words and words[0].rsplit("/", 1)[-1] == "turnwire":
        yield words[1:]


LINES = [
    pytest.param(arguments, id=f"{command.place} {' '.join(arguments)}"[:80])
    for command in ALL
    if not command.file
    for arguments in command_lines(command.text)
]


@pytest.mark.parametrize("arguments", LINES)
def test_command_line_is_accepted(arguments: list[str]) -> None:
    name, *flags = arguments
    command = load_command(name)
    assert command is not None
    settings = command.settings
    function: CommandFunction = command.function
    if name == "serve":
        stage, *flags = flags
        settings = [STAGES[stage]]
        function = _takes_settings

    @functools.wraps(function)
    def accept(*values: object, **others: object) -> int:
        return 0

    run_command(accept, f"turnwire {name}", flags, *settings, without=command.without, env={})


def _takes_settings(_settings: object) -> int:
    return 0


def test_lines_of_blocks_that_are_not_run_are_parsed() -> None:
    assert len(LINES) > 50
    assert [*command_lines("A=1 .venv/bin/turnwire connect pi --url u > f && pi")] == [
        ["connect", "pi", "--url", "u"]
    ]
    assert [*command_lines('make up ARGS="--port 1"; echo turnwire')] == [["up", "--port", "1"]]
