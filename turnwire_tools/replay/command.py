"""`turnwire replay FILE…`: plays recorded or written turns as a client of the HTTP APIs, and shows
the answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import aiohttp
import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from services.cli.common import CommandError, read_text
from services.cli.connect.server import read_models
from services.cli.registry import Command
from services.cli.signals import run
from services.runtime.config.base import Positive
from services.runtime.config.names import KEY_VARIABLE
from services.tokenization.detokenizer import Vocabulary
from services.tokenization.tokenizer_files import load_backend
from turnwire_tools.clients.answer import Api, ClientAnswer
from turnwire_tools.replay import replay_file
from turnwire_tools.replay.gateway import ReplayGateway, serving
from turnwire_tools.replay.player import OnEvent, Session
from turnwire_tools.replay.replay_file import Fail, Gate, Output, Pause, ReplayFile, ReplayTurn

GATE_MS = 200
"""Another server has no gates: it waits for this time at each."""


@dataclass(frozen=True, kw_only=True)
class ReplayFlags:
    """The flags of `turnwire replay`."""

    api: Literal["messages", "responses", "chat", "all"] = "all"
    """The API to use; `all`: every API over which the file can be played."""
    url: str | None = None
    """Play against this server instead of one in this process."""
    key: Annotated[str | None, Parameter(env_var=KEY_VARIABLE)] = None
    """API key for the server."""
    model: str | None = None
    """With --url: name of a model that the server has; default: the first one."""
    model_dir: str | None = None
    """Directory or hub id: parse a recording's tokens again, with this tokenizer."""
    speed: Positive | None = None
    """Speed, as a multiple of the recorded one; default: without pauses."""
    document: bool = False
    """Request answers in one piece, not as streams."""
    count: bool = False
    """Ask the counting endpoint too (Messages, Responses); its count must be that of the answer's
    usage."""
    events: bool = False
    """Show every event when it arrives."""
    quiet: bool = False
    """Show only failures."""


def replay(
    file: Path, /, *more: Path, flags: Annotated[ReplayFlags, Parameter(name="*")] = ReplayFlags()
) -> int:
    """Plays recorded or written turns as a client of the HTTP APIs, and shows what the client
    receives.

    Without --url, a frontend in this process plays the file's output: nothing else is needed. With
    --url, the requests go to a server: its answers are those of the file if its worker runs with
    `--script-mode request`.

    Args:
        file: A file of turns.
        more: Further files.
    """
    replays = [replay_file.read(str(path), read_text(path)) for path in (file, *more)]
    try:
        return run(_play_all(replays, flags))
    except aiohttp.ClientError as error:
        raise CommandError(error) from error


COMMAND = Command(replay)


async def _play_all(replays: Sequence[ReplayFile], flags: ReplayFlags) -> int:
    console = Console(highlight=False, soft_wrap=True)
    failed = False
    for replay in replays:
        for api in replay.apis if flags.api == "all" else [flags.api]:
            title = f"{replay.name}  {api}"
            why = _left_out(replay, api, flags)
            if why:
                console.print(Text(f"{title}  left out: {why}", style="dim"))
            else:
                failed |= not await _play(replay, api, flags, title, console)
    return int(failed)


async def _play(
    replay: ReplayFile, api: Api, flags: ReplayFlags, title: str, console: Console
) -> bool:
    """Plays a file over one API; returns whether all answers were as the file has them."""

    def show_event(name: str, data: Any) -> None:
        if flags.events:
            text = "[DONE]" if data is None else msgspec.json.encode(data).decode()
            console.print(Text(f"    {name} {text}", style="dim"))

    is_right = True
    async with _session(replay, api, flags, show_event) as session:
        if not flags.quiet:
            console.print(Text(title, style="bold"))
        for turn in replay.turns:
            played = await session.turn(turn)
            if not flags.quiet:
                _show(played.answer, console)
            for problem in played.problems:
                is_right = False
                console.print(Text(f"{title}  line {played.line}: {problem}", style="red"))
    return is_right


def _left_out(replay: ReplayFile, api: Api, flags: ReplayFlags) -> str | None:
    if api not in replay.apis:
        return f"it is made for {', '.join(replay.apis)}"
    return not_for_a_server(replay) if flags.url else None


def _show(answer: ClientAnswer, console: Console) -> None:
    for kind, text in answer.story:
        console.print(Text(f"  {kind:<9} ", style="cyan").append(text, style="default"))
    end = f"  {answer.end}"
    if answer.problem:
        end += f": {answer.problem}"
    if answer.usage:
        prompt, output = answer.usage
        end += f", {prompt} prompt and {output} output tokens"
    console.print(Text(end, style="dim"))


@contextlib.asynccontextmanager
async def _session(
    replay: ReplayFile, api: Api, flags: ReplayFlags, on_event: OnEvent
) -> AsyncIterator[Session]:
    async with aiohttp.ClientSession() as http:
        open_session = partial(
            Session,
            replay,
            api,
            http,
            stream=not flags.document,
            on_event=on_event,
            count=flags.count,
        )
        if flags.url:
            served = await asyncio.to_thread(read_models, flags.url, flags.key)
            headers = {"authorization": f"Bearer {flags.key}"} if flags.key else {}
            model = served.choose(flags.model).id

            def ask(turn: ReplayTurn, text: str) -> str:
                return text + directives(replay, turn)

            yield open_session(served.url, model=model, ask=ask, headers=headers)
            return

        vocabulary = None
        if flags.model_dir:
            backend = await asyncio.to_thread(
                load_backend, flags.model_dir, trust_remote_code=False
            )
            vocabulary = Vocabulary(backend)
        gateway = ReplayGateway(replay, vocabulary=vocabulary, speed=flags.speed)
        async with serving(gateway) as url:
            yield open_session(url, gateway=gateway)


def directives(replay: ReplayFile, turn: ReplayTurn) -> str:
    """The output of the turn and of the tool loop after it, in the form that `--script-mode
    request` reads from a user message: the n-th answer after the message is the n-th `[[say]]`."""
    first = replay.turns.index(turn)
    texts = []
    for number, played in enumerate(replay.turns[first:]):
        if number and played.results is None:
            break
        said = "".join(map(_directive, played.steps))
        texts.append(f"\n[[say]]{said}[[/say]]")
    return "".join(texts)


def _directive(step: replay_file.Step) -> str:
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


def not_for_a_server(replay: ReplayFile) -> str | None:
    """Why no server can give the answers of a file, whatever its engine; None if one can."""
    for turn in replay.turns:
        if turn.finish != "stop" or turn.refuse is not None:
            return "a server decides itself when it stops and what it refuses"
        is_complete = turn.user is None and turn.results is None
        if is_complete and any(isinstance(step, Output) for step in turn.steps):
            return "its requests are complete and cannot carry the output"
    return None
