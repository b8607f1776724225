"""`turnwire replay FILE…`: plays recorded or written turns as a client of the HTTP APIs, and shows the answers."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import aiohttp
import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from services.cli.connect.served import ServerError, read_models
from services.cli.replay import script
from services.cli.replay.gateway import MODEL, ReplayGateway, serving
from services.cli.replay.player import OnEvent, Played, Session
from services.cli.replay.script import Api, BadReplay, Fail, Gate, Output, Pause, Replay, Turn
from services.tokenization.detokenizer import Vocabulary
from services.tokenization.model_files import find_file

GATE_MS = 200
"""Another server has no gates: it waits for this time at each."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags of `turnwire replay`."""

    api: Api | Literal["all"] = "all"
    """The API to use; all: each that the file fits."""
    url: str | None = None
    """Play against this server instead of one in this process."""
    key: Annotated[str | None, Parameter(env_var="TURNWIRE_API_KEY")] = None
    """A key of the server."""
    model: str | None = None
    """With --url: a served name; default: the first one."""
    model_dir: str | None = None
    """Directory or hub id: parse a recording's tokens again, with this tokenizer."""
    speed: float | None = None
    """How many times as fast as recorded; default: without pauses."""
    document: bool = False
    """Request answers in one piece, not as streams."""
    events: bool = False
    """Show every event when it arrives."""
    quiet: bool = False
    """Show only failures."""


def replay(file: Path, /, *more: Path, flags: Annotated[Flags, Parameter(name="*")] = Flags()) -> int:
    """Plays recorded or written turns as a client of the HTTP APIs, and shows what the client receives.

    Without --url, a frontend in this process plays the file's output: nothing else is needed. With --url, the requests
    go to a server: its answers are those of the file if its worker runs with `--script-mode request`.

    Args:
        file: A file of turns.
        more: Further files.
    """
    try:
        replays = [script.read(str(path), path.read_text(encoding="utf-8")) for path in (file, *more)]
    except (BadReplay, OSError, UnicodeDecodeError) as error:
        print(f"turnwire replay: {error}", file=sys.stderr)
        return 2
    try:
        return asyncio.run(_play_all(replays, flags))
    except (ServerError, aiohttp.ClientError, OSError, TimeoutError) as error:
        print(f"turnwire replay: {error}", file=sys.stderr)
        return 1


async def _play_all(replays: Sequence[Replay], flags: Flags) -> int:
    screen = _Screen(Console(highlight=False, soft_wrap=True), flags)
    failed = False
    for replay in replays:
        for api in replay.apis if flags.api == "all" else [flags.api]:
            if api not in replay.apis:
                screen.skipped(replay, api, f"it is made for {', '.join(replay.apis)}")
            elif flags.url and (why := not_for_a_server(replay)):
                screen.skipped(replay, api, why)
            else:
                async with _session(replay, api, flags, screen.event) as session:
                    screen.begin(replay, api)
                    for turn in replay.turns:
                        played = await session.turn(turn)
                        screen.turn(played)
                        failed = failed or bool(played.problems)
    return int(failed)


@contextlib.asynccontextmanager
async def _session(replay: Replay, api: Api, flags: Flags, on_event: OnEvent) -> AsyncIterator[Session]:
    stream = not flags.document
    async with aiohttp.ClientSession() as http:
        if flags.url:
            served = await asyncio.to_thread(read_models, flags.url, flags.key)
            yield Session(
                replay,
                api,
                http,
                served.url,
                model=served.choose(flags.model).id,
                stream=stream,
                ask=lambda turn, text: text + directives(replay, turn),
                headers={"authorization": f"Bearer {flags.key}"} if flags.key else None,
                on_event=on_event,
            )
            return
        vocabulary = await asyncio.to_thread(_vocabulary, flags.model_dir) if flags.model_dir else None
        gateway = ReplayGateway(replay, vocabulary=vocabulary, speed=flags.speed)
        async with serving(gateway) as url:
            yield Session(replay, api, http, url, model=MODEL, gateway=gateway, stream=stream, on_event=on_event)


def _vocabulary(model: str) -> Vocabulary:
    from tokenizers import Tokenizer

    path = find_file(model, "tokenizer.json")
    if path is None:
        raise FileNotFoundError(f"{model} has no tokenizer.json")
    return Vocabulary(Tokenizer.from_file(str(path)))


def directives(replay: Replay, turn: Turn) -> str:
    """The output of the turn and of the tool loop after it, in the form that `--script-mode request` reads from a user
    message: the n-th answer after the message is the n-th `[[say]]`."""
    first = replay.turns.index(turn)
    texts = []
    for number, one in enumerate(replay.turns[first:]):
        if number and one.results is None:
            break
        texts.append("\n[[say]]" + "".join(map(_directive, one.steps)) + "[[/say]]")
    return "".join(texts)


def _directive(step: script.Step) -> str:
    match step:
        case Output(pieces):
            return "".join(pieces)
        case Gate():
            return f"[[pause {GATE_MS}]]"
        case Pause(ms):
            return f"[[pause {ms:g}]]"
        case Fail(message):
            return f"[[fail {message}]]"
    return ""


def not_for_a_server(replay: Replay) -> str | None:
    """Why no server can give the answers of a file, whatever its engine; None if one can."""
    for turn in replay.turns:
        if turn.finish != "stop" or turn.refuse is not None:
            return "a server decides itself when it stops and what it refuses"
        if turn.user is None and turn.results is None and any(isinstance(step, Output) for step in turn.steps):
            return "its requests are complete and cannot carry the output"
    return None


class _Screen:
    """Prints turns and events."""

    def __init__(self, console: Console, flags: Flags) -> None:
        self._console = console
        self._flags = flags
        self._title = ""

    def skipped(self, replay: Replay, api: Api, why: str) -> None:
        self._console.print(Text(f"{replay.name}  {api}  left out: {why}", style="dim"))

    def begin(self, replay: Replay, api: Api) -> None:
        self._title = f"{replay.name}  {api}"
        if not self._flags.quiet:
            self._console.print(Text(self._title, style="bold"))

    def event(self, name: str, data: Any) -> None:
        if self._flags.events:
            text = "[DONE]" if data is None else msgspec.json.encode(data).decode()
            self._console.print(Text(f"    {name} {text}", style="dim"))

    def turn(self, played: Played) -> None:
        answer = played.answer
        if not self._flags.quiet:
            for kind, text in answer.story:
                self._console.print(Text(f"  {kind:<9} ", style="cyan").append(text, style="default"))
            usage = f", {answer.usage[0]} prompt and {answer.usage[1]} output tokens" if answer.usage else ""
            problem = f": {answer.problem}" if answer.problem else ""
            self._console.print(Text(f"  {answer.end}{problem}{usage}", style="dim"))
        for problem in played.problems:
            self._console.print(Text(f"{self._title}  line {played.line}: {problem}", style="red"))
