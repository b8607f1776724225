"""A bucket that takes no writes is reported, and again when it does."""

import asyncio
import os
import subprocess
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.typing import FilteringBoundLogger

from schemas.errors import EngineFailed, NotFound, TimedOut, Unavailable
from services.cli.up.store_keeper import keep_store
from services.cli.up.supervisor import ChildSpec, Display, Supervisor
from services.images.store import IMAGE_BUCKET
from services.runtime.config.service import BusConfig
from services.runtime.nats.bus import Bus, Delivery
from services.runtime.storage.kv import Bucket, BucketConfig
from services.runtime.storage.write_watch import write_problem
from tests.kit.nats import NatsServer
from tests.kit.waiting import LIMIT_S, eventually
from tests.runtime.bus_clients import connected

ACKNOWLEDGED = b'{"stream":"KV_x","seq":1}'
REFUSED = b'{"error":{"code":503,"err_code":10047,"description":"insufficient storage"}}'


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("kv.TIMEOUT_S", "write_watch.TIMEOUT_S", "write_watch.PROBE_S"):
        monkeypatch.setattr(f"services.runtime.storage.{place}", 0.05)


def test_problems_of_a_write() -> None:
    assert write_problem(ACKNOWLEDGED) is None
    assert "insufficient storage" in str(write_problem(REFUSED))
    assert write_problem(TimedOut("no answer on $KV.x within 2 s")) == "no answer"
    assert write_problem(EngineFailed("no space left")) == "no space left"
    for elsewhere in (Unavailable("no connection"), NotFound("no bucket")):
        assert write_problem(elsewhere) == str(elsewhere), "only None is a write that was taken"


def logging() -> tuple[FilteringBoundLogger, list[MutableMapping[str, Any]]]:
    capture = structlog.testing.LogCapture()
    log = structlog.wrap_logger(structlog.PrintLogger(), processors=[capture])
    return log, capture.entries


def config(name: str) -> BucketConfig:
    return BucketConfig(
        name=name, description="a test", ttl_s=60.0, max_bytes=1 << 20, max_value_bytes=100_000
    )


@pytest.mark.parametrize("member", [None, "m"])
async def test_unanswered_writes_are_reported_until_one_is_taken(
    bus: Bus, other: Bus, member: str | None
) -> None:
    """With a stream that hangs, as one on a full disk does."""
    name = f"hangs-{member}"
    answers = [b""]

    def answer(delivery: Delivery) -> None:
        if answers[0]:
            delivery.reply(answers[0])

    await other.subscribe(f"$KV.{name}.>", answer)
    await other.flush()
    log, entries = logging()
    bucket = Bucket(bus, config(name), log)
    bucket.offer("k", b"v", member)
    await eventually(lambda: len(bus.unwritable_buckets) == 1)
    with pytest.raises(Unavailable, match="takes no writes"):
        await bucket.put("k", b"v", member)  # at once

    answers[0] = REFUSED
    await asyncio.sleep(0.2)
    assert len(bus.unwritable_buckets) == 1
    answers[0] = ACKNOWLEDGED
    await eventually(lambda: len(bus.unwritable_buckets) == 0)
    events = [entry["event"] for entry in entries]
    assert events == ["kv.unwritable", "kv.writable"]


async def test_store_that_goes_away_has_not_healed(bus: Bus, other: Bus) -> None:
    """As when the server turns JetStream off, after writes that it did not answer."""
    hanging = await other.subscribe("$KV.gone.>", lambda _: None)
    await other.flush()
    log, entries = logging()
    bucket = Bucket(bus, config("gone"), log)
    bucket.offer("k", b"v")
    await eventually(lambda: len(bus.unwritable_buckets) == 1)
    await hanging.stop()
    await other.flush()
    await asyncio.sleep(0.3)  # several attempts
    assert len(bus.unwritable_buckets) == 1
    assert [entry["event"] for entry in entries] == ["kv.unwritable"]

    await other.subscribe("$KV.gone.>", lambda delivery: delivery.reply(ACKNOWLEDGED))
    await eventually(lambda: len(bus.unwritable_buckets) == 0)


async def test_one_slow_write_is_not_reported(
    bus: Bus, other: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.runtime.storage.write_watch.TIMEOUT_S", LIMIT_S)
    probed = asyncio.Event()

    def answer(delivery: Delivery) -> None:
        if delivery.data == b"probe":
            delivery.reply(ACKNOWLEDGED)
            probed.set()

    await other.subscribe("$KV.slow.>", answer)
    await other.flush()
    log, entries = logging()
    Bucket(bus, config("slow"), log).offer("k", b"v")
    await probed.wait()
    assert entries == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB; skips where none can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(file: Path) -> None:
    """Writes until the disk is full."""
    subprocess.run(["dd", "if=/dev/zero", f"of={file}"], capture_output=True, check=False)


class Quiet(Display):
    def __init__(self) -> None:
        self.reports: list[str] = []

    def relay(self, name: str, line: str) -> None:
        pass

    def report(self, text: str, level: str = "info", event: str = "", **fields: str) -> None:
        self.reports.append(text)

    def advance(self, name: str, text: str) -> None:
        pass


@pytest.mark.slow
async def test_up_starts_the_server_again_when_a_full_disk_has_room(
    small_disk: Path, nats_binary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cli.up.store_keeper.CHECK_S", 0.2)
    server = NatsServer(nats_binary, str(small_disk))
    server.start()  # for its configuration
    server.make_buckets()
    server.kill()
    screen = Quiet()
    supervisor = Supervisor(screen)
    spec = ChildSpec("nats", [nats_binary, "-c", f"{small_disk}/nats-{server.port}.conf"])
    await supervisor.start(spec)
    keeping = asyncio.create_task(
        keep_store(BusConfig(nats_url=server.url), small_disk, "nats", supervisor, screen)
    )
    log, entries = logging()
    async with connected(server.url) as client:
        bus = client.bus
        bucket = Bucket(bus, config(IMAGE_BUCKET), log)
        filler = small_disk / "filler"
        fill(filler)
        while not bus.unwritable_buckets:
            bucket.offer("k", bytes(50_000))
            await asyncio.sleep(0.1)
        await eventually(lambda: any("is full" in report for report in screen.reports))
        filler.unlink()
        await eventually(lambda: not bus.unwritable_buckets)
        await bucket.put("k", b"v")
        assert await bucket.get("k") == b"v"
    events = [entry["event"] for entry in entries]
    assert events == ["kv.unwritable", "kv.writable"]
    assert any("it is started again" in report for report in screen.reports)
    keeping.cancel()
    await supervisor.kill()


@pytest.mark.parametrize("jetstream", ["", "max_file_store: 4GB"])
async def test_up_starts_a_server_again_that_has_turned_jetstream_off(
    jetstream: str, nats_binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none that only has not all buckets: settings leave some out."""
    monkeypatch.setattr("services.cli.up.store_keeper.CHECK_S", 0.05)
    monkeypatch.setattr("services.runtime.storage.write_watch.TIMEOUT_S", 5.0)
    server = NatsServer(nats_binary, str(tmp_path), jetstream=jetstream)
    server.start()
    screen = Quiet()
    supervisor = Supervisor(screen)
    checks: list[Delivery] = []
    async with connected(server.url) as client:
        if jetstream:
            await client.bus.subscribe("$JS.API.INFO", checks.append)
            await client.bus.flush()
        keeping = asyncio.create_task(
            keep_store(BusConfig(nats_url=server.url), tmp_path, "nats", supervisor, screen)
        )
        await eventually(lambda: len(checks) >= 3 or bool(screen.reports))
    keeping.cancel()
    server.kill()
    assert any("it is started again" in report for report in screen.reports) == (not jetstream)
