"""LoRA adapters through real processes: each is a model of its own in every API, and its sessions
are as exact as those of the model. Every prompt is judged from the bus."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from schemas.token_ids import pack_ids
from services.tokenization.block_keys import block_keys
from tests.kit.bus_turns import BusTurns, DecodedTurn, prefix_break
from tests.kit.messages_client import Client, call, say
from tests.kit.nats import NatsServer
from tests.kit.stack import MODEL, Stack
from tests.pipeline.sessions import Session
from turnwire_tools.clients.answer import APIS
from turnwire_tools.clients.apis import CLIENTS

BLOCK = 16
"""Of the script engine."""
NAMES = {MODEL: "", "sql": "sql", f"{MODEL}:docs": "docs"}
"""The adapter that each name means."""
ALL = [MODEL, f"{MODEL}:docs", "docs", f"{MODEL}:sql", "sql"]
WORK = say(*(f"I think.\n</think>\n\n Looking  \n\n{call('ls  -l')}\n" for _ in range(4)))
"""Outputs that no template renders."""

pytestmark = pytest.mark.slow  # a stack of its own


@pytest.fixture(scope="module")
def adapted(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """One worker, in whose cache everything could be found."""
    running = Stack(make_nats(), demo_model, tmp_path_factory.mktemp("adapters"))
    try:
        yield running.start_all(worker={"engine_args": '{"adapters": ["sql", "docs"]}'})
    finally:
        running.stop()


@pytest.fixture
async def client(adapted: Stack) -> AsyncIterator[Client]:
    found = Client(adapted.url)
    yield found
    await found.http.close()


@pytest.fixture
async def bus(adapted: Stack) -> AsyncIterator[BusTurns]:
    async with BusTurns(adapted.nats.url) as turns:
        yield turns


def keys(turn: DecodedTurn) -> set[int]:
    ids = pack_ids(turn.prompt + turn.output)
    return set(block_keys(ids, BLOCK, salt=turn.salt))


async def test_equal_sessions_share_nothing_between_adapters(client: Client, bus: BusTurns) -> None:
    """Sessions of equal words, which without evidence would share their blocks and their turns."""
    sessions = [
        Session(client, api, WORK, reasons=True, model=name) for api in APIS for name in NAMES
    ]
    for _ in range(4):
        await asyncio.gather(*(session.turn() for session in sessions))

    held: dict[str, set[int]] = {adapter: set() for adapter in NAMES.values()}
    for session in sessions:
        turns = [await bus.ended(turn) for turn in session.turns]
        adapter = NAMES[session.model]
        assert {turn.adapter for turn in turns} == {adapter}
        for earlier, later in pairwise(turns):
            assert (session.api, prefix_break(earlier, later)) == (session.api, None)
            assert (later.cached or 0) > len(earlier.prompt) - BLOCK
        held[adapter].update(*map(keys, turns))
    assert not any(one & other for one, other in combinations(held.values(), 2))


async def test_session_that_changes_its_adapter_is_computed_again(
    client: Client, bus: BusTurns
) -> None:
    """Its turns are written by the template, not found in the ledger, and its blocks are new."""
    session = Session(client, "messages", "Change. " + WORK, reasons=False, model="sql")
    await session.turn()
    for model in ("docs", MODEL):
        session.model = model
        await session.turn()
        before, after = [await bus.ended(turn) for turn in session.turns[-2:]]
        assert prefix_break(before, after) is not None
        assert not keys(before) & keys(after)


async def test_every_api_lists_counts_and_answers_with_the_name_of_its_adapter(
    client: Client,
) -> None:
    _, listed = await client.get("/v1/models")
    assert [model["id"] for model in listed["data"]] == ALL
    assert [model["slug"] for model in listed["models"]] == ALL
    for api in APIS:
        for name in ALL:
            session = Session(client, api, f"{name} {WORK}", reasons=True, model=name)
            document = await session.turn()
            assert document["model"] == name
            status, entry = await client.get(f"/v1/models/{name}")
            assert (status, entry["root"]) == (200, MODEL)
            assert entry["parent"] == (None if name == MODEL else MODEL)
            if CLIENTS[api].count_path:
                counted = await session.post(CLIENTS[api].count_path, session.body)
                usage = (await session.turn())["usage"]
                read = usage.get("cache_read_input_tokens", 0)
                assert counted["input_tokens"] == usage["input_tokens"] + read


@pytest.mark.parametrize("name", ["nonesuch", f"{MODEL}:nonesuch", f"sql:{MODEL}", "sql:sql", ":"])
async def test_adapters_that_no_worker_has_are_not_found(client: Client, name: str) -> None:
    for api in APIS:
        session = Session(client, api, WORK, reasons=True, model=name)
        for path in filter(None, (CLIENTS[api].path, CLIENTS[api].count_path)):
            status, document = await client.post(path, session.body)
            assert status == (400 if api == "responses" else 404), "as the API itself"
            assert name in document["error"]["message"]
    assert (await client.get(f"/v1/models/{name}"))[0] == 404
