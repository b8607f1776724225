"""Tests that written turns, played through the HTTP stack over each API, reach the client in order
and in time."""

from pathlib import Path

import aiohttp

from tests.kit.every import Cases
from turnwire_tools.clients.answer import Api
from turnwire_tools.replay.gateway import ReplayGateway, serving
from turnwire_tools.replay.player import Played, Session
from turnwire_tools.replay.replay_file import ReplayFile, read

FILES = sorted((Path(__file__).parent / "files").glob("*.jsonl"))
REPLAYS = [read(path.name, path.read_text()) for path in FILES]


async def play(replay: ReplayFile, api: Api, *, stream: bool = True) -> list[Played]:
    gateway = ReplayGateway(replay)
    async with serving(gateway) as url, aiohttp.ClientSession() as http:
        session = Session(replay, api, http, url, gateway=gateway, stream=stream)
        return [await session.turn(turn) for turn in replay.turns]


async def test_streams_equal_their_files(cases: Cases) -> None:
    assert len(REPLAYS) > 15
    for replay in REPLAYS:
        for api in replay.apis:
            with cases.case(file=replay.name, api=api):
                played = await play(replay, api)
                lines = [(turn.line, list[str]()) for turn in replay.turns]
                assert [(turn.line, turn.problems) for turn in played] == lines
                for turn, seen in zip(replay.turns, played, strict=True):
                    assert turn.expect is not None, "a written turn has an expected answer"
                    whole = [text for kind, text in turn.expect if kind == "call"]
                    legacy = turn.request is not None and "functions" in turn.request
                    assert legacy or seen.answer.dispatched == whole, "every complete call, once"


async def test_documents_equal_their_files(cases: Cases) -> None:
    for replay in REPLAYS:
        if "responses" not in replay.apis:
            continue
        with cases.case(file=replay.name):
            played = await play(replay, "responses", stream=False)
            for turn, seen in zip(replay.turns, played, strict=True):
                if turn.end == "error":
                    assert seen.answer.end == "refused"
                else:
                    assert seen.problems == []
