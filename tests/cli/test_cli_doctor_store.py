"""What the doctor's writes show of the store."""

from pathlib import Path

import pytest

from services.cli.doctor import store
from tests.kit.nats import NatsServer
from tests.kit.waiting import eventually
from tests.runtime.bus_clients import connected, serving


async def test_store_that_takes_no_writes_fails(
    own_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.runtime.storage.write_watch.TIMEOUT_S", 0.2)
    async with connected(own_nats.url) as client, connected(own_nats.url) as stream:
        bus = client.bus
        missing = await store.check_store(bus)
        assert (missing.status, missing.text[-10:]) == ("note", "is missing")
        unmade = await store.check_store(bus, makes_buckets=True)
        assert (unmade.status, "Is the disk of nats-server full" in unmade.text) == ("fail", True)
        await stream.bus.subscribe("$KV.tw_ledger.>", lambda _: None)  # hangs
        await stream.bus.flush()
        hung = await store.check_store(bus)
        assert (hung.status, hung.about) == ("fail", "store")
        assert hung.text.startswith("tw_ledger: no answer; tw_responses, tw_media, tw_rollouts:")
    own_nats.make_buckets()
    async with connected(own_nats.url) as client:
        await eventually(lambda: client.bus.connected)
        taken = await store.check_store(client.bus)
        assert taken.status == "ok"


RIGHTS = """authorization { users: [
  { user: all, password: "s3cret" }
  { user: some, password: "s3cret", permissions: {
      publish: ["$KV.tw_responses.*", "$KV.tw_rollouts.*.*"], subscribe: [">"] } } ] }"""


async def test_bucket_that_hangs_is_told_from_those_that_permissions_forbid(
    nats_binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.runtime.storage.write_watch.TIMEOUT_S", 0.5)
    with serving(nats_binary, tmp_path, RIGHTS) as address:
        async with (
            connected(f"nats://some:s3cret@{address}") as client,
            connected(f"nats://all:s3cret@{address}") as stream,
        ):
            await stream.bus.subscribe("$KV.tw_responses.>", lambda _: None)
            await stream.bus.flush()
            found = await store.check_store(client.bus)
    assert found.status == "fail"
    forbidden = f"tw_ledger, tw_media: {store.FORBIDDEN}"
    assert found.text.startswith(f"{forbidden}; tw_responses: no answer; tw_rollouts: is missing.")
