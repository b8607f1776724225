"""Stored values on a server with deploy/nats/nats.conf: who knows a key reads its values, and no
user of the bus reads others, deletes them or empties a bucket, whatever it asks of JetStream."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import chain, product
from typing import Any

import pytest
from nats.aio.msg import Msg
from structlog.typing import FilteringBoundLogger

from deploy.audit import BUCKETS, PROBE, STAGES, SUBSCRIBERS, USERS, Audit, User
from services.frontend.rollouts.store import rollout_bucket
from services.frontend.stored.shared import bucket_config
from services.images.store import ImageStore
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.stages import ParserConfig
from services.runtime.config.stores import ImageStoreConfig
from services.runtime.nats.bus import Bus
from services.runtime.storage.kv import Bucket, digest_key, ledger_bucket
from tests.deploy.deployed import DeployedNats
from tests.kit.waiting import LIMIT_S, until

SECRET = b"what a tenant said"
KEYS = [digest_key(tenant, f"resp_{number}") for tenant in (None, "a", "b") for number in range(3)]
READERS = {
    "frontend": {"KV_tw_responses", "KV_tw_media", "KV_tw_rollouts"},
    "preprocessor": {"KV_tw_ledger"},
    "worker": {"KV_tw_media"},
}
"""The buckets that a user may read, if it knows a key."""


@pytest.fixture
def server(nats_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedNats]:
    deployed = DeployedNats(nats_binary, tmp_path_factory.mktemp("deploy"))
    deployed.make_buckets()
    yield deployed
    deployed.kill()


class Inbox(list[Msg]):
    """What a user received."""

    async def receive(self, message: Msg) -> None:
        self.append(message)


class Stored:
    """The values of all buckets, through the connections of the services."""

    def __init__(self, buses: dict[str, Bus], log: FilteringBoundLogger) -> None:
        self.responses = Bucket(buses["frontend"], bucket_config(FrontendConfig()), log)
        self._sent = ImageStore(buses["frontend"], ImageStoreConfig(), log)
        self.images = ImageStore(buses["worker"], ImageStoreConfig(), log)
        self._ledger = ledger_bucket(ParserConfig(model="m"))
        self._written = Bucket(buses["parser"], self._ledger, log)
        self.turns = Bucket(buses["preprocessor"], self._ledger, log)
        self.rollouts = Bucket(buses["frontend"], rollout_bucket(FrontendConfig()), log)

    async def write(self) -> None:
        for key in KEYS:
            await self.responses.put(key, SECRET + key.encode())
            await self._sent.put(key, SECRET + key.encode())
            self._written.offer(key, SECRET + key.encode(), "member")
            await self.rollouts.put(key, SECRET + key.encode(), "member")

        async def there() -> bool:
            return all([await self.turns.members(key) for key in KEYS])

        await until(there)

    async def are_unchanged(self) -> None:
        for key in KEYS:
            assert await self.responses.get(key) == SECRET + key.encode()
            assert await self.images.get(key) == SECRET + key.encode()
            for bucket in (self.turns, self.rollouts):
                assert await bucket.members(key) == [SECRET + key.encode()]


@asynccontextmanager
async def stored(server: DeployedNats, log: FilteringBoundLogger) -> AsyncIterator[Stored]:
    buses = {user: await server.bus(user, log) for user in STAGES}
    values = Stored(buses, log)
    await values.write()
    yield values
    await values.are_unchanged()
    for bus in buses.values():
        await bus.close()


def filters(stream: str) -> list[str]:
    """Subjects that match values of a bucket, and more."""
    keys = f"$KV.{stream.removeprefix('KV_')}"
    return [f"{keys}.>", f"{keys}.*", f"{keys}.*.*", "$KV.>", ">", "*"]


def bodies(stream: str) -> Iterator[dict[str, Any]]:
    """Requests for stored messages: by number, by time, by subject, many at once."""
    yield {}
    for seq in range(20):
        yield {"seq": seq}
    yield {"batch": 100, "seq": 1}
    yield {"batch": 100, "start_time": "2020-01-01T00:00:00Z"}
    for subject in filters(stream):
        yield {"last_by_subj": subject}
        yield {"next_by_subj": subject, "seq": 1, "batch": 100, "max_bytes": 1 << 20}
        yield {"multi_last": [subject], "batch": 100, "up_to_seq": 20}


def requests(stream: str, inbox: str) -> Iterator[tuple[str, Any]]:
    """Ways to read a stream, to have it sent somewhere, and to change it; `inbox` is where a user
    receives."""
    api = "$JS.API"
    for body in bodies(stream):
        yield f"{api}.DIRECT.GET.{stream}", body
        yield f"{api}.STREAM.MSG.GET.{stream}", body
    for subject in filters(stream):
        for body in ({}, {"batch": 100, "seq": 1}, {"multi_last": [subject]}):
            yield f"{api}.DIRECT.GET.{stream}.{subject}", body
        yield f"{api}.STREAM.INFO.{stream}", {"subjects_filter": subject}
        consumer = {"name": PROBE, "deliver_policy": "all", "ack_policy": "none"}
        for push in ({}, {"deliver_subject": inbox}):
            own = {**consumer, "filter_subject": subject, **push}
            config = {"stream_name": stream, "config": own}
            yield f"{api}.CONSUMER.CREATE.{stream}", config
            yield f"{api}.CONSUMER.CREATE.{stream}.{PROBE}", config
            yield f"{api}.CONSUMER.CREATE.{stream}.{PROBE}.{subject}", config
            yield f"{api}.CONSUMER.DURABLE.CREATE.{stream}.{PROBE}", config
        yield f"{api}.CONSUMER.MSG.NEXT.{stream}.{PROBE}", {"batch": 100, "no_wait": True}
        yield f"{api}.STREAM.PURGE.{stream}", {"filter": subject}
        copied = {"name": stream, "filter_subject": subject}
        yield f"{api}.STREAM.CREATE.{PROBE}", {"name": PROBE, "sources": [copied]}
        yield subject, {}
        yield f"$KV.{stream.removeprefix('KV_')}.{PROBE}", {}
    yield f"{api}.STREAM.CREATE.{PROBE}", {"name": PROBE, "mirror": {"name": stream}}
    sent_on = {"subjects": ["$KV.>"], "republish": {"src": ">", "dest": inbox}}
    yield f"{api}.STREAM.CREATE.{PROBE}", {"name": PROBE, **sent_on}
    yield f"{api}.STREAM.SNAPSHOT.{stream}", {"deliver_subject": inbox, "no_consumers": True}
    for seq in range(20):
        yield f"{api}.STREAM.MSG.DELETE.{stream}", {"seq": seq}
    for call in (
        "STREAM.LIST",
        "STREAM.NAMES",
        f"CONSUMER.LIST.{stream}",
        f"STREAM.DELETE.{stream}",
    ):
        yield f"{api}.{call}", {}


ROLLUPS = [
    {"Nats-Rollup": "all"},
    {"Nats-Rollup": "sub"},
    {"KV-Operation": "PURGE", "Nats-Rollup": "sub"},
]


async def settled(user: User, received: list[Msg]) -> None:
    """Waits until nothing more arrives."""
    before = -1
    while before < len(received):
        before = len(received)
        await user.refused()
        await until(lambda: _pause(user))


async def _pause(user: User) -> bool:
    for _ in range(20):  # JetStream answers in threads of its own
        await user.client.flush()
    return True


@pytest.mark.parametrize("name", [name for name in USERS if name != "setup"])
async def test_no_user_reads_a_value_without_its_key(
    server: DeployedNats, name: str, quiet_log: FilteringBoundLogger
) -> None:
    received = Inbox()
    async with stored(server, quiet_log), Audit(server.url, server.secrets).user(name) as user:
        inbox = f"_INBOX_{name}.{PROBE}.1"
        own = [subject for subject, users in SUBSCRIBERS.items() if name in users]
        others = [*chain.from_iterable(map(filters, BUCKETS)), "$JS.>", "_INBOX.>"]
        for subject in [*own, *others]:
            await user.client.subscribe(subject, cb=received.receive)
        await user.refused()
        reply_to = [inbox, *(subject.replace("*", PROBE).replace(">", PROBE) for subject in own)]
        for stream in BUCKETS:
            for number, (subject, body) in enumerate(requests(stream, inbox)):
                data = json.dumps(body).encode() if body else b""
                await user.client.publish(subject, data, reply_to[number % len(reply_to)])
            for subject, headers in product(filters(stream), ROLLUPS):
                await user.client.publish(subject, b"", inbox, headers)
        await settled(user, received)
        streams = {(message.headers or {}).get("Nats-Stream") for message in received} - {None}
        assert streams == READERS.get(name, set())
        secrets = [SECRET, *(key.encode() for key in KEYS)]
        for message in received:
            assert [word for word in secrets if word in message.data] == []


async def test_user_that_creates_the_buckets_reads_no_value(
    server: DeployedNats, quiet_log: FilteringBoundLogger
) -> None:
    """`setup` may have a bucket send on what is stored."""
    received = Inbox()
    async with Audit(server.url, server.secrets).user("setup") as user:
        await user.client.subscribe("_INBOX_setup.*.*", cb=received.receive)
        for stream, source, inbox in REPUBLISHED:
            config: dict[str, Any] = {"name": stream}
            config |= {"subjects": [f"$KV.{stream.removeprefix('KV_')}.>"]}
            config |= {"max_msgs_per_subject": 1, "storage": "file", "discard": "old"}
            config |= {"allow_direct": True, "deny_delete": True}
            config |= {"republish": {"src": source, "dest": inbox}}
            update = f"$JS.API.STREAM.UPDATE.{stream}"
            answer = await user.client.request(update, json.dumps(config).encode(), timeout=LIMIT_S)
            assert b'"error"' not in answer.data, answer.data
        async with stored(server, quiet_log):
            await settled(user, received)
        sent_on = [message for message in received if (message.headers or {}).get("Nats-Stream")]
        assert len(sent_on) == len(REPUBLISHED) * len(KEYS)
        assert [message.data for message in sent_on if SECRET in message.data] == []


REPUBLISHED = [
    ("KV_tw_responses", "$KV.tw_responses.*", "_INBOX_setup.x.{{wildcard(1)}}"),
    ("KV_tw_media", "$KV.tw_media.*", "_INBOX_setup.y.{{wildcard(1)}}"),
    ("KV_tw_ledger", "$KV.tw_ledger.*.*", "_INBOX_setup.{{wildcard(1)}}.{{wildcard(2)}}"),
]
