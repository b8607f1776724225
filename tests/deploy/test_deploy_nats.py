"""deploy/nats/nats.conf on a real server: every service has the permissions that it needs, and no others."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import nats
import pytest
from nats.aio.client import Client
from structlog.typing import FilteringBoundLogger

from schemas import subjects
from services.frontend.apis.responses.store.shared import bucket_config
from services.runtime.bus import Bus
from services.runtime.config import BusConfig, FrontendConfig, read_secret
from services.runtime.kv import open_bucket
from services.runtime.ledger_bucket import BUCKET
from tests.deploy.deployed import DeployedNats

MODEL = "acme/m"
RESPONSES = "tw_responses"


def stream(bucket: str) -> list[str]:
    """Subjects on which JetStream creates and updates a bucket."""
    return [f"$JS.API.STREAM.{call}.{subjects.stream_of(bucket)}" for call in ("CREATE", "UPDATE")]


def read(bucket: str) -> str:
    """Subject on which JetStream answers with a value."""
    return f"$JS.API.DIRECT.GET.{subjects.stream_of(bucket)}.{subjects.bucket_key(bucket, 'k')}"


PUBLISHES = {
    "frontend": [
        subjects.turn(MODEL, "pre.1"),
        subjects.count(MODEL, "pre.1"),
        subjects.tokenize(MODEL, "pre.1"),
        subjects.detokenize(MODEL, "pre.1"),
        subjects.cancel(MODEL),
        subjects.credit("parser", "p.1"),
        subjects.replay("parser", "p.1"),
        subjects.heartbeat("frontend", "f.1"),
        subjects.responses(),
        *stream(RESPONSES),
        read(RESPONSES),
        subjects.bucket_key(RESPONSES, "k"),
    ],
    "preprocessor": [
        subjects.generate(MODEL, "w.1"),
        subjects.events("f.1"),
        subjects.heartbeat("preprocessor", "pre.1"),
        *stream(BUCKET),
        f"$JS.API.DIRECT.GET.{subjects.stream_of(BUCKET)}",
    ],
    "worker": [subjects.tokens("p.1"), subjects.kv(MODEL, "w.1"), subjects.heartbeat("worker", "w.1")],
    "parser": [
        subjects.events("f.1"),
        subjects.cancel(MODEL),
        subjects.credit("worker", "w.1"),
        subjects.replay("worker", "w.1"),
        subjects.heartbeat("parser", "p.1"),
        subjects.ledger(MODEL),
        *stream(BUCKET),
        subjects.bucket_member(BUCKET, "k", "m"),
    ],
    "tap": [],
}
"""The subjects on which each service publishes."""

SUBSCRIBES = {
    "frontend": [subjects.events("f.1"), subjects.heartbeats(), subjects.responses(), "_INBOX_frontend.>"],
    "preprocessor": [
        subjects.turn(MODEL, "pre.1"),
        subjects.count(MODEL, "pre.1"),
        subjects.tokenize(MODEL, "pre.1"),
        subjects.detokenize(MODEL, "pre.1"),
        subjects.cancel(MODEL),
        subjects.kv(MODEL, "*"),
        subjects.ledger(MODEL),
        subjects.heartbeats(),
        "_INBOX_preprocessor.>",
    ],
    "worker": [
        subjects.generate(MODEL, "w.1"),
        subjects.cancel(MODEL),
        subjects.credit("worker", "w.1"),
        subjects.replay("worker", "w.1"),
        subjects.heartbeats(),
        "_INBOX_worker.>",
    ],
    "parser": [
        subjects.tokens("p.1"),
        subjects.cancel(MODEL),
        subjects.credit("parser", "p.1"),
        subjects.replay("parser", "p.1"),
        subjects.heartbeats(),
        "_INBOX_parser.>",
    ],
    "tap": [subjects.ALL],
}

EVERY_PUBLISHED = sorted({subject for some in PUBLISHES.values() for subject in some} | {"_INBOX_frontend.x", "other"})
EVERY_SUBSCRIBED = sorted({subject for some in SUBSCRIBES.values() for subject in some} | {">"})


@pytest.fixture(scope="module")
def server(nats_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedNats]:
    deployed = DeployedNats(nats_binary, tmp_path_factory.mktemp("deploy"))
    yield deployed
    deployed.stop()


class User:
    """A client of the bus, and the refusals that it got."""

    def __init__(self, client: Client, refusals: list[str]) -> None:
        self.client = client
        self._refusals = refusals

    async def refused(self) -> list[str]:
        """What the server has refused since the last call."""
        await self.client.flush()  # its ping is sent ahead of what waits to be written
        await self.client.flush()
        await self.client.flush()  # nats-py reports a refusal in a task of its own
        found, self._refusals[:] = self._refusals[:], []
        return found


@pytest.fixture
async def user(server: DeployedNats, request: pytest.FixtureRequest) -> AsyncIterator[User]:
    refusals: list[str] = []

    async def refuse(error: Exception) -> None:
        refusals.append(str(error))

    name = request.param
    client = await nats.connect(
        server.url,
        user=name,
        password=read_secret(server.password_file(name)),
        inbox_prefix=f"_INBOX_{name}",
        error_cb=refuse,
        allow_reconnect=False,
    )
    yield User(client, refusals)
    await client.close()


@pytest.mark.parametrize("user", PUBLISHES, indirect=True, ids=list(PUBLISHES))
async def test_publish_permissions(user: User, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["user"]
    allowed = []
    for subject in EVERY_PUBLISHED:
        await user.client.publish(subject, b"")
        if not await user.refused():
            allowed.append(subject)
    assert allowed == sorted(PUBLISHES[name])


@pytest.mark.parametrize("user", SUBSCRIBES, indirect=True, ids=list(SUBSCRIBES))
async def test_subscribe_permissions(user: User, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["user"]
    allowed = []
    for subject in EVERY_SUBSCRIBED:
        subscription = await user.client.subscribe(subject)
        if not await user.refused():
            allowed.append(subject)
        await subscription.unsubscribe()
    wanted = set(SUBSCRIBES[name])
    if name == "tap":
        wanted |= {subject for subject in EVERY_SUBSCRIBED if subject.startswith(subjects.PREFIX)}
    assert set(allowed) == wanted


@pytest.mark.parametrize("user", ["preprocessor", "worker"], indirect=True)
async def test_a_responder_may_reply_once(user: User, server: DeployedNats, request: pytest.FixtureRequest) -> None:
    asked, asker = (
        (subjects.count(MODEL, "pre.1"), "frontend")
        if request.node.callspec.params["user"] == "preprocessor"
        else (subjects.generate(MODEL, "w.1"), "preprocessor")
    )
    client = await nats.connect(
        server.url,
        user=asker,
        password=read_secret(server.password_file(asker)),
        inbox_prefix=f"_INBOX_{asker}",
    )
    subscription = await user.client.subscribe(asked)
    assert await user.refused() == []
    answer = asyncio.create_task(client.request(asked, b"?", timeout=60))
    message = await subscription.next_msg(60)
    await message.respond(b"!")
    assert (await answer).data == b"!"
    assert await user.refused() == []
    await message.respond(b"again")
    assert await user.refused() != []
    await client.close()


async def test_connections_need_a_password(server: DeployedNats) -> None:
    for wrong in ({}, {"user": "frontend", "password": "guess"}, {"user": "admin", "password": ""}):
        with pytest.raises(nats.errors.Error):
            await nats.connect(server.url, allow_reconnect=False, connect_timeout=60, **wrong)


async def test_the_frontend_stores_responses(server: DeployedNats, quiet_log: FilteringBoundLogger) -> None:
    bus = Bus(
        BusConfig(nats_url=server.url, nats_user="frontend", nats_password_file=server.password_file("frontend")),
        name="test",
        inbox_prefix="_INBOX_frontend",
        log=quiet_log,
        on_fatal=pytest.fail,
        on_reconnect=lambda: None,
    )
    await bus.connect()
    bucket = await open_bucket(bus, bucket_config(FrontendConfig()), quiet_log)
    assert bucket is not None
    await bucket.put("k", b"v")
    assert await bucket.get("k") == b"v"
    await bucket.delete("k")
    assert await bucket.get("k") is None
    await bus.close()


async def test_prompts_fit(server: DeployedNats) -> None:
    client = await nats.connect(server.url, user="tap", password=read_secret(server.password_file("tap")))
    assert client.max_payload == 8 * 1024 * 1024
    await client.close()
