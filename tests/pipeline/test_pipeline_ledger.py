"""The ledger through real processes: the next prompt begins with the tokens that the engine has
cached, for sessions that look alike: the same prompt at once, of three APIs and two tenants, with
every process of the inner stages replaced in between. Every prompt is judged from the bus."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.kit.bus_turns import BusTurns, prefix_break
from tests.kit.messages_client import Client, call, say
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack
from tests.pipeline.sessions import Session, without_thoughts
from turnwire_tools.clients.answer import APIS, Api

COUNTS = {"worker": 2, "parser": 2, "preprocessor": 2}
ROOM = {"ledger_store_mb": 64}
"""Less than the test servers' limit."""
TENANTS = ("red", "blue")
WORK = say(
    "  I am [[turn]],  \nthen I act. \n</think>\n\n Looking  \n\n\n"
    + call("ls  -l", timeout_s="2.50")
    + "\n"
    + call("date")
    + "\n",
    "Again [[turn]]\n</think>\n\nOne more.\n" + call("date") + "\n\n",
    "  [[turn]] says so. \n</think>\n\n\nDone.  ",
)
"""Outputs that no template renders: blanks at the ends, blank lines, 2.50."""
TALK = say("I, [[turn]], think.\n</think>\n\n Hello  ")

pytestmark = pytest.mark.slow  # a stack of its own


@pytest.fixture(scope="module")
def two_of_each(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("ledger")
    keys = directory / "keys"
    keys.write_text(
        "".join(f"{name}:{hashlib.sha256(name.encode()).hexdigest()}\n" for name in TENANTS)
    )
    running = Stack(make_nats(), demo_model, directory)
    try:
        yield running.start_all(
            COUNTS, parser=ROOM, preprocessor=ROOM, frontend={"api_keys_file": keys}
        )
    finally:
        running.stop()


@pytest.fixture
async def clients(two_of_each: Stack) -> AsyncIterator[dict[str, Client]]:
    """A client of each tenant."""
    found = {tenant: Client(two_of_each.url) for tenant in TENANTS}
    for tenant, client in found.items():
        client.http.headers["authorization"] = f"Bearer {tenant}"
    yield found
    for client in found.values():
        await client.http.close()


@pytest.fixture
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(demo_model / "tokenizer.json"))


@pytest.fixture
async def bus(two_of_each: Stack) -> AsyncIterator[BusTurns]:
    async with BusTurns(two_of_each.nats.url) as turns:
        yield turns


def replace_all(stack: Stack) -> None:
    for stage in ("preprocessor", "parser", "worker"):
        old = stack.of(stage)
        for _ in old:
            stack.start(stage, **({} if stage == "worker" else ROOM))
        for child in old:
            child.terminate()
        for child in old:
            child.wait()
    stack.restore(COUNTS)


def foreign(
    sessions: list[Session], session: Session, prompt: list[int], tokenizer: Tokenizer
) -> list[str]:
    """The turns of other sessions with thoughts in the prompt."""
    text = tokenizer.decode(prompt, skip_special_tokens=False)
    others = [turn for other in sessions if other is not session for turn in other.turns]
    return [turn for turn in others if turn in text]


async def test_every_session_is_its_own_prefix(
    two_of_each: Stack, clients: dict[str, Client], bus: BusTurns, tokenizer: Tokenizer
) -> None:
    sessions = [
        Session(clients[tenant], api, WORK, reasons=reasons)
        for api in APIS
        for tenant in TENANTS
        for reasons in (True, True, False)
    ]
    for number in range(4):
        if number == 2:
            await asyncio.to_thread(replace_all, two_of_each)
        await asyncio.gather(*(session.turn() for session in sessions))
    for session in sessions:
        turns = [await bus.ended(turn) for turn in session.turns]
        for earlier, later in pairwise(turns):
            assert (session.api, prefix_break(earlier, later)) == (session.api, None)
        for turn in turns:
            assert not foreign(sessions, session, turn.prompt, tokenizer)


async def test_without_evidence_nothing_is_restored(
    two_of_each: Stack, clients: dict[str, Client], bus: BusTurns, tokenizer: Tokenizer
) -> None:
    """Look-alike sessions of clients that send back nothing but the same text."""
    apis: tuple[Api, ...] = ("messages", "messages", "chat", "chat")
    sessions = [Session(clients["red"], api, TALK, reasons=False) for api in apis]
    await asyncio.gather(*(session.turn() for session in sessions))
    await asyncio.to_thread(replace_all, two_of_each)
    await asyncio.gather(*(session.turn() for session in sessions))
    for session in sessions:
        later = await bus.ended(session.turns[1])
        assert not foreign(sessions, session, later.prompt, tokenizer)
        assert session.turns[0] not in tokenizer.decode(later.prompt), "its own, by chance"


async def test_a_seal_of_another_tenant_restores_nothing(
    clients: dict[str, Client], bus: BusTurns, tokenizer: Tokenizer
) -> None:
    mine = Session(clients["red"], "messages", "\n\n" + WORK, reasons=True)
    await mine.turn()
    theirs = Session(clients["blue"], "messages", WORK, reasons=True)
    theirs.messages = without_thoughts(mine.messages)
    await asyncio.gather(mine.turn(), theirs.turn())
    for session, restored in ((mine, True), (theirs, False)):
        prompt = (await bus.ended(session.turns[-1])).prompt
        assert (f"I am {mine.turns[0]}," in tokenizer.decode(prompt)) is restored
