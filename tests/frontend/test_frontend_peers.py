"""Which frontends are alive, and what follows for responses that run in them."""

import time
from typing import Any

import msgspec
from msgspec import Raw

from schemas.control import Heartbeat
from services.frontend.peers import NO_PEERS, BusPeers
from services.frontend.stored.record import StoredResponse
from tests.kit.process import FakeProcess
from tests.kit.stored import shared_store

OTHER = "frontend-2"


class OneRecord:
    """A bucket with one record."""

    def __init__(self, record: StoredResponse) -> None:
        self.record = record

    async def get(self, _key: str) -> bytes:
        return msgspec.json.encode(self.record)


def frontend() -> Any:
    """The process of `frontend-1`, the only one on the bus."""
    return FakeProcess()


def test_frontends_are_alive_as_their_heartbeats_show() -> None:
    process = frontend()
    peers = BusPeers(process)
    assert (peers.living(), peers.is_alive(OTHER), peers.is_alive(process.id)) == ([], False, True)
    process.registry.receive(Heartbeat("frontend", OTHER), 0.0)
    assert (peers.living(), peers.is_alive(OTHER)) == ([OTHER], True)


def test_process_that_is_cut_off_takes_no_frontend_for_dead() -> None:
    process = frontend()
    process.cut_off = True
    assert BusPeers(process).is_alive(OTHER)


def test_only_frontend_has_no_peers() -> None:
    assert (NO_PEERS.living(), NO_PEERS.is_alive("")) == ([], True)


async def test_response_fails_with_its_frontend_but_not_while_this_one_is_cut_off() -> None:
    process = frontend()
    document = Raw(b'{"id":"resp_a","status":"in_progress"}')
    bucket: Any = OneRecord(
        StoredResponse(
            id="resp_a",
            created=time.time(),
            response=document,
            status="in_progress",
            owner=OTHER,
        )
    )
    store = shared_store(process, bucket, BusPeers(process), process.config)

    async def status() -> str:
        record = await store.get(StoredResponse, "resp_a", None)
        assert record is not None
        return record.status

    assert await status() == "failed"
    process.cut_off = True
    assert await status() == "in_progress"
