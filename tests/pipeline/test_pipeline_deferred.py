"""Deferred tools through real processes, for clients that cannot defer them: of 250 tools the first
prompt has eight and a search, every prompt begins with all tokens of the turn before, and other
frontends, and those that were started again, continue the session."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from schemas.conversation import Call, Message, Text, ToolSpec
from services.frontend.turns.hosted.hosted_turns import next_turn_id
from tests.kit.bus_turns import BusTurns, DecodedTurn, prefix_break
from tests.kit.messages_client import Client, say
from tests.kit.model_output import written_call
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack
from tests.kit.tool_catalogue import catalogue, tasks
from tests.pipeline.sessions import Session
from turnwire_tools.clients.answer import APIS, Api

pytestmark = pytest.mark.slow  # a stack of its own
LISTED = 8
MOST_TOKENS = 2000
"""Tokens of the first prompt beyond those of the session without tools."""
TENANTS = ("red", "blue")
ROOM = {"ledger_store_mb": 64}
PLACES = [f"place_{number}" for number in range(25)]
DEEDS = ["open", "close", "rename", "copy", "delete", "share", "lock", "print", "count", "archive"]


def tool(name: str, about: str) -> ToolSpec:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"target": {"type": "string", "description": f"What to {about}."}},
        "required": ["target"],
    }
    return ToolSpec(name, f"Use this to {about}.", schema, strict=False)


TOOLS = [tool(f"{deed}_{place}", f"{deed} {place}") for place in PLACES for deed in DEEDS]


def search(words: str) -> str:
    return written_call("tool_search", query=words)


STEPS = (
    "I need  a tool. \n</think>\n\n Looking \n\n" + search("lock place_17"),
    "Found\n</think>\n\n" + written_call("lock_place_17", target=" a  door"),
    "Two more\n</think>\n\nAgain. " + search("nothing of this kind") + "\n" + search("print"),
    "And one\n</think>\n\n" + search("archive place_3"),
    " Use both \n</think>\n\nCalling\n"
    + written_call("print_place_0", target="x")
    + "\n"
    + search("share place_9")
    + "\n"
    + written_call("archive_place_3", target="y"),
    "Last\n</think>\n\n" + written_call("share_place_9", target="z"),
    "So it is.\n</think>\n\nAll  done.  ",
)
WORK = say(*STEPS)
"""Outputs that no template renders: four answers, with searches in three."""
TALK = say("Hm\n</think>\n\nLet me see. " + search("copy"), "Ah\n</think>\n\nThere is one.")
CALLED = [["lock_place_17"], ["print_place_0", "archive_place_3"], ["share_place_9"], []]


@pytest.fixture(scope="module")
def stack(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("deferred")
    keys = directory / "keys"
    keys.write_text(
        "".join(f"{name}:{hashlib.sha256(name.encode()).hexdigest()}\n" for name in TENANTS)
    )
    running = Stack(make_nats(), demo_model, directory)
    settings = {"api_keys_file": keys, "defer_tools": LISTED, "response_store": "shared"}
    try:
        yield running.start_all({"frontend": 2}, parser=ROOM, preprocessor=ROOM, frontend=settings)
    finally:
        running.stop()


@pytest.fixture
async def bus(stack: Stack) -> AsyncIterator[BusTurns]:
    async with BusTurns(stack.nats.url) as turns:
        yield turns


@pytest.fixture
async def clients(stack: Stack) -> AsyncIterator[list[Client]]:
    """A client of each frontend, of the first tenant."""
    found = [Client(child.url) for child in stack.of("frontend")]
    for client in found:
        client.http.headers["authorization"] = f"Bearer {TENANTS[0]}"
        await client.ready()
    yield found
    for client in found:
        await client.http.close()


async def decoded(bus: BusTurns, session: Session) -> list[DecodedTurn]:
    """All turns of the model in a session, in order."""
    found: list[DecodedTurn] = []
    for turn in session.turns:
        ids = (next_turn_id(turn, number) for number in count())
        for id in ids:
            if id not in bus.turns:
                break
            found.append(await bus.ended(id))
    return found


def calls(session: Session) -> list[list[str]]:
    return [
        [part.name for part in message.parts if isinstance(part, Call)]
        for message in session.messages
        if message.role == "assistant"
    ]


def breaks(turns: list[DecodedTurn]) -> list[str]:
    return [found for found in (prefix_break(*pair) for pair in pairwise(turns)) if found]


async def test_every_prompt_begins_with_the_last_one(
    clients: list[Client], bus: BusTurns, demo_model: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    sessions = [
        Session(clients[0], api, WORK, reasons=reasons, tools=TOOLS)
        for api in APIS
        for reasons in (True, False)
    ]
    for number in range(4):
        for session in sessions:
            session.use(clients[number % 2])
        documents = await asyncio.gather(*(session.turn() for session in sessions))
        assert "tool_search" not in str(documents)
    for session in sessions:
        turns = await decoded(bus, session)
        assert (session.api, breaks(turns)) == (session.api, [])
        assert (session.api, calls(session)) == (session.api, CALLED)
        assert len(turns) == len(STEPS)
        text = tokenizer.decode(turns[0].prompt, skip_special_tokens=False)
        assert text.count("Use this to ") == LISTED


async def test_answers_of_text_are_found_again(
    stack: Stack, clients: list[Client], bus: BusTurns
) -> None:
    """Also by a frontend that was started again."""
    sessions = [
        Session(clients[1], api, f"{api} {reasons}. {TALK}", reasons=reasons, tools=TOOLS)
        for api in APIS
        for reasons in (True, False)
    ]
    await asyncio.gather(*(session.turn() for session in sessions))
    frontend = stack.of("frontend")[1]
    frontend.terminate()
    frontend.wait()
    frontend.start()
    await clients[1].ready()
    for session in sessions:
        await session.turn()
        await session.turn()
    for session in sessions:
        turns = await decoded(bus, session)
        assert (session.api, breaks(turns)) == (session.api, [])
        assert len(turns) == 4


@pytest.mark.parametrize("api", APIS)
async def test_another_tenant_gets_nothing(
    clients: list[Client], bus: BusTurns, demo_model: Path, api: Api
) -> None:
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    own = Session(clients[0], api, "Mine. " + WORK, reasons=True, tools=TOOLS)
    await own.turn()
    thief = Client(clients[0].url)
    thief.http.headers["authorization"] = f"Bearer {TENANTS[1]}"
    foreign = Session(thief, api, "", reasons=True, tools=TOOLS)
    foreign.messages = [*own.messages]
    await own.turn()
    await foreign.turn()
    await thief.http.close()
    words = "lock place_17"
    own_turn, foreign_turn = [await bus.ended(turn) for turn in (own.turns[1], foreign.turns[0])]
    texts = [tokenizer.decode(turn.prompt) for turn in (own_turn, foreign_turn)]
    in_request, in_search, in_definition = 1, 1, 2
    assert texts[0].count(words) == in_request + in_search + in_definition
    assert texts[1].count(words) == in_request


@pytest.mark.parametrize("api", APIS)
async def test_agent_finds_and_calls_tools(clients: list[Client], bus: BusTurns, api: Api) -> None:
    """A scripted agent does 20 tasks in one session of 40 requests."""
    asked = tasks()
    tools = [ToolSpec(name, about, schema, strict=False) for name, about, schema in catalogue()]
    first, *others = [f"Use a tool that {task}." for task in asked.values()]
    session = Session(clients[0], api, first, result="it ran", reasons=True, tools=tools)
    for question in [*others, ""]:
        await session.turn()
        await session.turn()
        session.messages[-1] = Message("user", [Text(question)])
    called = [names for names in calls(session) if names]
    assert called == [[name] for name in asked]
    turns = await decoded(bus, session)
    assert breaks(turns) == []
    assert len(turns) == 3 * len(asked)

    bare = Session(clients[0], api, first, reasons=True, tools=())
    await bare.turn()
    own_tokens = len((await bus.ended(bare.turns[0])).prompt)
    assert len(turns[0].prompt) - own_tokens <= MOST_TOKENS
