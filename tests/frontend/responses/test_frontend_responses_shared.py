"""Two frontends that share their responses over a real nats-server."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp import ClientSession
from openai import AsyncOpenAI, BadRequestError, NotFoundError
from structlog.typing import FilteringBoundLogger

from schemas import subjects
from schemas.control import FrontendNotice
from services.frontend.apis.responses.store import shared
from services.frontend.apis.responses.store.shared import Sharing, bucket_config
from services.runtime.bus import Message
from services.runtime.config import FrontendConfig
from services.runtime.kv import Bucket, digest_key
from services.runtime.process import Process
from tests.conftest import MakeProcess, make_bucket
from tests.frontend.frontend_fakes import MODEL, FakeGateway, Served, Step, finish, serving, text
from tests.frontend.responses.responses_client import Client, said

CONFIG = FrontendConfig(response_store="shared")


class Pair:
    """Two frontends; `go` lets their turns end, `living` has the ids of their processes."""

    def __init__(
        self, one: Served, other: Served, http: ClientSession, bucket: Bucket, go: asyncio.Event, living: list[str]
    ) -> None:
        self.one, self.other = one, other
        self.ask_one, self.ask_other = Client(http, one), Client(http, other)
        self.bucket, self.go, self.living = bucket, go, living


@pytest.fixture
async def pair(make_process: MakeProcess, quiet_log: FilteringBoundLogger) -> AsyncIterator[Pair]:
    living: list[str] = []
    go = asyncio.Event()

    async def sharing(process: Process) -> Sharing:
        bucket = await make_bucket(process.bus, bucket_config(CONFIG), quiet_log)
        living.append(process.id)
        return Sharing(
            bucket,
            process.id,
            lambda id: id in living,
            lambda notice: process.publish(subjects.frontends(), notice),
            process.spawn,
        )

    def turn() -> list[Step]:
        return [[*text(0, "So far")], go, [finish(1)]]

    one_process, other_process = await make_process("frontend", "f1"), await make_process("frontend", "f2")
    shares = [await sharing(one_process), await sharing(other_process)]
    async with (
        serving(FakeGateway(turn), CONFIG, sharing=shares[0]) as one,
        serving(FakeGateway(turn), CONFIG, sharing=shares[1]) as other,
        ClientSession() as http,
    ):
        decode = msgspec.json.Decoder(FrontendNotice).decode
        for process, served in ((one_process, one), (other_process, other)):

            def apply(message: Message, served: Served = served) -> None:
                served.responses.apply_notice(decode(message.data))

            await process.subscribe(subjects.frontends(), apply)
            await process.bus.flush()
        yield Pair(one, other, http, shares[1].bucket, go, living)
        go.set()


async def until(client: Client, id: str, status: str) -> None:
    async with asyncio.timeout(60):
        while (await client.ask("GET", f"/{id}"))["status"] != status:
            pass


async def test_what_one_keeps_the_other_has(pair: Pair) -> None:
    pair.go.set()
    first = await pair.ask_one.create(input="one")
    second = await pair.ask_other.create(previous_response_id=first["id"], input="two")
    assert said(pair.other.gateway.turns[-1].conversation) == [
        ("user", ["one"]),
        ("assistant", ["So far"]),
        ("user", ["two"]),
    ]
    events = await pair.ask_one.stream(previous_response_id=second["id"], input="three")
    made = events[-1]["response"]
    assert [texts for _, texts in said(pair.one.gateway.turns[-1].conversation)][::2] == [["one"], ["two"], ["three"]]
    assert await pair.ask_other.ask("GET", f"/{made['id']}") == made
    assert await pair.ask_other.stream("GET", f"/{made['id']}?stream=true&starting_after=3") == events[4:]
    items = await pair.ask_other.ask("GET", f"/{made['id']}/input_items")
    assert len(items["data"]) == 5
    reference = {"type": "item_reference", "id": made["output"][0]["id"]}
    await pair.ask_other.create(input=[reference, {"role": "user", "content": "go"}])


async def test_what_one_deletes_is_gone_for_the_other(pair: Pair) -> None:
    pair.go.set()
    made = await pair.ask_one.create()
    assert await pair.ask_other.ask("GET", f"/{made['id']}") == made
    await pair.ask_one.ask("DELETE", f"/{made['id']}")
    await pair.ask_one.refused("GET", f"/{made['id']}", 404)
    async with asyncio.timeout(60):
        while await pair.ask_other.status(f"/{made['id']}") == 200:
            pass
    await pair.ask_other.refused("GET", f"/{made['id']}", 404)


async def test_a_background_response_is_seen_followed_and_cancelled_from_the_other(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "WAITS_S", (0.01,) * 20)
    made = await pair.ask_one.create(background=True)
    await until(pair.ask_other, made["id"], "in_progress")
    following = asyncio.create_task(pair.ask_other.stream("GET", f"/{made['id']}?stream=true"))
    error = await pair.ask_other.refused(
        "POST", json={"model": MODEL, "input": "x", "previous_response_id": made["id"]}
    )
    assert "has not ended yet" in error["message"]
    pair.go.set()
    events = await following
    assert events[-1]["type"] == "response.completed"
    assert events == await pair.ask_one.stream("GET", f"/{made['id']}?stream=true")
    pair.go.clear()
    made = await pair.ask_one.create(background=True)
    await until(pair.ask_one, made["id"], "in_progress")
    cancelled = await pair.ask_other.ask("POST", f"/{made['id']}/cancel")
    assert (cancelled["status"], pair.one.gateway.turns[-1].cancelled) == ("cancelled", ["hangup"])
    assert (await pair.ask_one.ask("GET", f"/{made['id']}"))["status"] == "cancelled"


async def test_a_background_response_of_a_dead_process_has_failed(pair: Pair) -> None:
    made = await pair.ask_one.create(background=True)
    await until(pair.ask_other, made["id"], "in_progress")
    del pair.living[0]
    shown = await pair.ask_other.ask("GET", f"/{made['id']}")
    assert (shown["status"], shown["error"]["code"]) == ("failed", "server_error")


async def test_a_drain_leaves_everything_in_the_bucket(pair: Pair) -> None:
    pair.go.set()
    made = await pair.ask_one.create()
    await pair.one.responses.drain()
    assert await pair.bucket.get(digest_key(None, made["id"])) is not None


async def test_what_is_too_large_for_the_bus_is_kept_without_its_stream_or_here_only(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.go.set()
    monkeypatch.setattr(shared, "MAX_VALUE_BYTES", 3500)
    events = await pair.ask_one.stream(input="x" * 1000)
    made = events[-1]["response"]
    assert await pair.ask_other.ask("GET", f"/{made['id']}") == made
    assert (await pair.ask_other.refused("GET", f"/{made['id']}?stream=true"))["param"] == "stream"
    assert await pair.ask_one.stream("GET", f"/{made['id']}?stream=true") == events
    alone = await pair.ask_one.create(input="y" * 7_500_000)
    await pair.ask_other.refused("GET", f"/{alone['id']}", 404)
    assert await pair.ask_one.ask("GET", f"/{alone['id']}") == alone
    (line,) = [line for line in pair.one.lines if line["event"] == "responses.not_shared"]
    assert (line["response"], line["reason"]) == (alone["id"], "too large")


async def test_without_its_bucket_a_store_keeps_its_own(
    make_process: MakeProcess, quiet_log: FilteringBoundLogger
) -> None:
    process = await make_process("frontend", "alone")
    absent = Bucket(process.bus, msgspec.structs.replace(bucket_config(CONFIG), name="absent"), quiet_log)
    sharing = Sharing(absent, process.id, lambda _id: True, lambda _notice: None, process.spawn)

    def turn() -> list[Step]:
        return [[*text(0, "Alone"), finish(1)]]

    async with serving(FakeGateway(turn), CONFIG, sharing=sharing) as one, ClientSession() as http:
        client = Client(http, one)
        made = await client.create()
        assert await client.ask("GET", f"/{made['id']}") == made
        await client.refused("GET", "/resp_unknown", 404)
        await client.ask("DELETE", f"/{made['id']}")
        await client.refused("GET", f"/{made['id']}", 404)


async def test_stored_chat_completions_are_found_changed_and_deleted_everywhere(pair: Pair) -> None:
    pair.go.set()
    one, other = (AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k") for served in (pair.one, pair.other))
    sent = await one.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi."}], store=True)
    assert (await other.chat.completions.retrieve(sent.id)).choices[0].message.content == "So far"
    assert [message.id async for message in other.chat.completions.messages.list(sent.id)] == [f"{sent.id}-0"]
    await other.chat.completions.update(sent.id, metadata={"a": "b"})
    async with asyncio.timeout(60):
        while (await one.chat.completions.retrieve(sent.id)).metadata != {"a": "b"}:
            pass
    await other.chat.completions.delete(sent.id)

    async def retrieve_until_it_fails() -> None:
        while True:
            await one.chat.completions.retrieve(sent.id)

    async with asyncio.timeout(60):
        with pytest.raises(NotFoundError):
            await retrieve_until_it_fails()


async def test_conversations_need_a_store_of_their_own(pair: Pair) -> None:
    client = AsyncOpenAI(base_url=f"{pair.one.url}/v1", api_key="k")
    for attempt in (
        client.conversations.create(),
        client.responses.create(model=MODEL, input="Hi.", conversation="conv_1"),
    ):
        with pytest.raises(BadRequestError, match="response_store"):
            await attempt
