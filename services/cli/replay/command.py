"""`turnwire replay FILE…`: plays recorded or written turns as a client of the HTTP APIs, and shows what it sees.

Without --url the frontend runs in this process and plays the file's output: nothing else is needed. With --url a server
is asked; one whose worker runs with `--script-mode request` says what the file says, any other says what it likes.
"""

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from rich.console import Console
from rich.text import Text

from services.cli.replay import script
from services.cli.replay.gateway import MODEL, ReplayGateway
from services.cli.replay.player import Played, Session
from services.cli.replay.script import APIS, Api, BadReplay, Fail, Gate, Pause, Replay, Say, Turn
from services.cli.replay.server import serving
from services.cli.served import CannotAsk, ask
from services.parser.detokenizer import Vocabulary
from services.runtime.config_flags import parse_arguments
from services.runtime.model_files import find_file

GATE_MS = 200
"""A server that is not ours knows no gates: it waits so long at each."""


def main(argv: Sequence[str]) -> int:
    """Plays files; status 1 where something is not as the file expects it, 2 for a file that is none."""
    parser = argparse.ArgumentParser(prog="turnwire replay", allow_abbrev=False, description=__doc__)
    parser.add_argument("file", nargs="+", type=Path)
    parser.add_argument("--api", choices=[*APIS, "all"], default="all", help="over which [default: each that it fits]")
    parser.add_argument("--url", help="play against this server instead of one in this process")
    parser.add_argument(
        "--key", default=os.environ.get("TURNWIRE_API_KEY"), help="a key of the server; TURNWIRE_API_KEY"
    )
    parser.add_argument("--model", metavar="NAME", help="with --url: a served name [default: the first one]")
    parser.add_argument(
        "--model-dir", metavar="DIR_OR_ID", help="parse a recording's tokens again, with this tokenizer"
    )
    parser.add_argument("--speed", type=float, metavar="N", help="N times as fast as recorded [default: at once]")
    parser.add_argument("--document", action="store_true", help="ask for answers in one piece, not for streams")
    parser.add_argument("--events", action="store_true", help="show every event as it comes")
    parser.add_argument("--quiet", action="store_true", help="show only what is wrong")
    arguments = parse_arguments(parser, argv)
    try:
        replays = [script.read(str(path), path.read_text(encoding="utf-8")) for path in arguments.file]
    except (BadReplay, OSError, UnicodeDecodeError) as error:
        print(f"turnwire replay: {error}", file=sys.stderr)
        return 2
    try:
        return asyncio.run(_play_all(replays, arguments))
    except (CannotAsk, aiohttp.ClientError, OSError, TimeoutError) as error:
        print(f"turnwire replay: {error}", file=sys.stderr)
        return 1


async def _play_all(replays: Sequence[Replay], arguments: argparse.Namespace) -> int:
    show = _Show(Console(highlight=False, soft_wrap=True), arguments)
    wrong = 0
    for replay in replays:
        for api in replay.apis if arguments.api == "all" else [arguments.api]:
            if api not in replay.apis:
                show.skipped(replay, api, f"it is made for {', '.join(replay.apis)}")
            elif arguments.url and (why := not_for_a_server(replay)):
                show.skipped(replay, api, why)
            else:
                async with _session(replay, api, arguments, show.event) as session:
                    show.begin(replay, api)
                    for turn in replay.turns:
                        played = await session.turn(turn)
                        show.turn(turn, played)
                        wrong += bool(played.problems)
    return 1 if wrong else 0


@contextlib.asynccontextmanager
async def _session(replay: Replay, api: Api, arguments: argparse.Namespace, on_event: Any) -> AsyncIterator[Session]:
    stream = not arguments.document
    async with aiohttp.ClientSession() as http:
        if arguments.url:
            served = await asyncio.to_thread(ask, arguments.url, arguments.key)
            yield Session(
                replay,
                api,
                http,
                served.url,
                model=served.choose(arguments.model).id,
                stream=stream,
                ask=lambda turn, text: text + directives(replay, turn),
                headers={"authorization": f"Bearer {arguments.key}"} if arguments.key else None,
                on_event=on_event,
            )
            return
        vocabulary = await asyncio.to_thread(_vocabulary, arguments.model_dir) if arguments.model_dir else None
        gateway = ReplayGateway(replay, vocabulary=vocabulary, speed=arguments.speed)
        async with serving(gateway) as url:
            yield Session(replay, api, http, url, model=MODEL, gateway=gateway, stream=stream, on_event=on_event)


def _vocabulary(model: str) -> Vocabulary:
    from tokenizers import Tokenizer

    path = find_file(model, "tokenizer.json")
    if path is None:
        raise FileNotFoundError(f"{model} has no tokenizer.json")
    return Vocabulary(Tokenizer.from_file(str(path)))


def directives(replay: Replay, turn: Turn) -> str:
    """What the turn and the tool loop behind it say, as the script engine reads it from a request
    (`--script-mode request`): the n-th answer behind this user message is the n-th `[[say]]`."""
    first = replay.turns.index(turn)
    said = []
    for number, one in enumerate(replay.turns[first:]):
        if number and one.results is None:
            break
        said.append("\n[[say]]" + "".join(map(_directive, one.steps)) + "[[/say]]")
    return "".join(said)


def _directive(step: script.Step) -> str:
    match step:
        case Say(pieces):
            return "".join(pieces)
        case Gate():
            return f"[[pause {GATE_MS}]]"
        case Pause(ms):
            return f"[[pause {ms:g}]]"
        case Fail(message):
            return f"[[fail {message}]]"
    return ""


def not_for_a_server(replay: Replay) -> str | None:
    """Why a server could not say it, whatever engine it has."""
    for turn in replay.turns:
        if turn.finish != "stop" or turn.refuse is not None:
            return "a server decides itself when it stops, and what it refuses"
        if turn.user is None and turn.results is None and any(isinstance(step, Say) for step in turn.steps):
            return "its requests are whole, and cannot carry what is to be said"
    return None


class _Show:
    """Writes what happens."""

    def __init__(self, console: Console, arguments: argparse.Namespace) -> None:
        self._console = console
        self._events: bool = arguments.events
        self._quiet: bool = arguments.quiet
        self._where = ""

    def skipped(self, replay: Replay, api: Api, why: str) -> None:
        self._console.print(Text(f"{replay.name}  {api}  left out: {why}", style="dim"))

    def begin(self, replay: Replay, api: Api) -> None:
        self._where = f"{replay.name}  {api}"
        if not self._quiet:
            self._console.print(Text(self._where, style="bold"))

    def event(self, name: str, data: Any) -> None:
        if self._events:
            told = "[DONE]" if data is None else msgspec.json.encode(data).decode()
            self._console.print(Text(f"    {name} {told}", style="dim"))

    def turn(self, turn: Turn, played: Played) -> None:
        answer = played.answer
        if not self._quiet:
            for kind, text in answer.story:
                self._console.print(Text(f"  {kind:<9} ", style="cyan").append(text, style="default"))
            usage = f", {answer.usage[0]} prompt and {answer.usage[1]} output tokens" if answer.usage else ""
            problem = f": {answer.problem}" if answer.problem else ""
            self._console.print(Text(f"  {answer.end}{problem}{usage}", style="dim"))
        for problem in played.problems:
            self._console.print(Text(f"{self._where}  line {turn.line}: {problem}", style="red"))
