"""Replay files over real processes: the pipeline gives the same turns as the in-memory player, and
a recording of a tap plays like the original turn."""

import asyncio
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import aiohttp
import pytest

from tests.kit.every import Cases
from tests.kit.nats import NatsServer
from tests.kit.stack import MODEL, Stack
from tests.kit.waiting import eventually
from turnwire_tools.clients.answer import APIS, Api
from turnwire_tools.replay.command import directives, not_for_a_server
from turnwire_tools.replay.gateway import ReplayGateway, serving
from turnwire_tools.replay.player import Session
from turnwire_tools.replay.replay_file import Gate, ReplayFile, ReplayTurn, read

FILES = sorted((Path(__file__).parents[1] / "replays" / "files").glob("*.jsonl"))
REPLAYS = [
    replay
    for replay in (read(path.name, path.read_text()) for path in FILES)
    if replay.header.family == "qwen3_coder" and not_for_a_server(replay) is None
]


def session(replay: ReplayFile, api: Api, http: aiohttp.ClientSession, url: str) -> Session:
    def ask(turn: ReplayTurn, text: str) -> str:
        return text + directives(replay, turn)

    return Session(replay, api, http, url, model=MODEL, ask=ask, count=True)


@pytest.mark.parametrize("api", APIS)
async def test_the_pipeline_plays_each_file(stack: Stack, api: Api, cases: Cases) -> None:
    assert len(REPLAYS) > 10
    async with aiohttp.ClientSession() as http:
        for replay in REPLAYS:
            with cases.case(replay.name):
                client = session(replay, api, http, stack.url)
                for turn in replay.turns:
                    played = await client.turn(turn)
                    assert (played.line, played.problems) == (played.line, [])


async def test_a_recording_can_be_played(stack: Stack, nats: NatsServer, tmp_path: Path) -> None:
    file = tmp_path / "turns.jsonl"
    command = ("-m", "services.cli.main", "tap", "--nats-url", nats.url, "--record", str(file))
    tap = await asyncio.create_subprocess_exec(
        sys.executable, *command, "--json", stdout=DEVNULL, stderr=PIPE
    )
    assert tap.stderr is not None
    assert b"listening" in await tap.stderr.readline()
    written = next(replay for replay in REPLAYS if replay.name == "interleaved.jsonl")
    async with aiohttp.ClientSession() as http:
        client = session(written, "responses", http, stack.url)
        for turn in written.turns:
            await client.turn(turn)
        await eventually(lambda: file.read_text().count('"expect"') >= len(written.turns))
        tap.send_signal(signal.SIGINT)
        await tap.wait()
        recording = read("recording", file.read_text())
        assert [turn.expect for turn in recording.turns] == [turn.expect for turn in written.turns]
        steps = [step for turn in recording.turns for step in turn.steps]
        assert [step for step in steps if isinstance(step, Gate)] == []
        for api in APIS:
            gateway = ReplayGateway(recording)
            async with serving(gateway) as url:
                again = Session(recording, api, http, url, gateway=gateway)
                for turn in recording.turns:
                    assert (await again.turn(turn)).problems == []
