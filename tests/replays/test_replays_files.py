"""Tests that written turns, played through the HTTP stack over each API, reach the client in order
and in time."""

from pathlib import Path

import aiohttp

from schemas.conversation import Conversation
from tests.kit.every import Cases
from turnwire_tools.clients.answer import Api, Story
from turnwire_tools.replay.gateway import ReplayGateway, serving
from turnwire_tools.replay.player import Played, Session
from turnwire_tools.replay.replay_file import RecordedTurn, ReplayFile, read

FILES = sorted((Path(__file__).parent / "files").glob("*.jsonl"))
REPLAYS = [read(path.name, path.read_text()) for path in FILES]


async def play(
    replay: ReplayFile, api: Api, *, stream: bool = True
) -> tuple[list[Played], list[Conversation]]:
    gateway = ReplayGateway(replay)
    async with serving(gateway) as url, aiohttp.ClientSession() as http:
        session = Session(replay, api, http, url, gateway=gateway, stream=stream)
        played = [await session.turn(turn) for turn in replay.turns]
    return played, gateway.conversations


async def test_streams_equal_their_files(cases: Cases) -> None:
    assert len(REPLAYS) > 15
    for replay in REPLAYS:
        for api in replay.apis:
            with cases.case(file=replay.name, api=api):
                played, _ = await play(replay, api)
                lines = [(turn.line, list[str]()) for turn in replay.turns]
                assert [(turn.line, turn.problems) for turn in played] == lines
                for turn, seen in zip(replay.turns, played, strict=True):
                    assert turn.expect is not None, "a written turn has an expected answer"
                    whole = [text for kind, text in turn.expect if kind == "call"]
                    legacy = turn.request is not None and "functions" in turn.request
                    assert legacy or seen.answer.dispatched == whole, "every complete call, once"


async def test_documents_equal_their_files(cases: Cases) -> None:
    """The document has the same blocks. In Chat they have no order, and there is one reasoning
    text."""
    for replay in REPLAYS:
        for api in replay.apis:
            with cases.case(file=replay.name, api=api):
                played, _ = await play(replay, api, stream=False)
                for turn, seen in zip(replay.turns, played, strict=True):
                    check_document(turn, seen, api)


def check_document(turn: RecordedTurn, seen: Played, api: Api) -> None:
    wanted = turn.expect or []
    found = seen.answer.story
    if turn.end == "error":
        assert seen.answer.end == "refused"
    elif api == "messages" and turn.end == "length":
        # `input` is an object, of which only the turn's end shows that it was cut off.
        *whole, (kind, text) = wanted
        *first, last = found
        assert seen.answer.end == turn.end
        assert first == whole
        if kind == "cut call":
            assert (last[0], last[1].split()[0]) == ("call", text.split()[0])
        else:
            assert last == (kind, text)
    elif api == "chat":
        assert seen.answer.end == turn.end
        assert together(found) == together(wanted)
    else:
        assert seen.problems == []


def together(story: Story) -> dict[str, list[str]]:
    """The texts by kind; reasoning and text without white space."""
    texts: dict[str, list[str]] = {"reasoning": [""], "text": [""], "call": [], "cut call": []}
    for kind, text in story:
        if kind in ("reasoning", "text"):
            texts[kind][0] += "".join(text.split())
        else:
            texts[kind].append(text)
    return texts
