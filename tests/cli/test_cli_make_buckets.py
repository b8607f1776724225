"""`turnwire buckets`: creates and updates buckets on a real server, waits for it, and fails with
one line."""

import asyncio
from typing import Any

import nats as nats_py
import pytest

from schemas.errors import TimedOut
from services.cli.commands import make_buckets as commands
from services.cli.commands.make_buckets import keep_buckets, make_buckets
from services.cli.main import main
from services.runtime.config.service import BusConfig
from services.runtime.config.stores import BucketsConfig
from tests.kit.nats import NatsServer, free_port
from tests.kit.waiting import until


def run(url: str, *argv: str) -> int:
    return main(["buckets", "--nats-url", url, *argv])


async def streams(url: str) -> dict[str, Any]:
    """The configurations of the server's streams; none as long as it does not answer."""
    try:
        client = await nats_py.connect(url, connect_timeout=1, allow_reconnect=False)
        infos = await client.jetstream().streams_info()
        await client.close()
    except (nats_py.errors.Error, OSError):
        return {}
    return {str(info.config.name): info.config for info in infos}


def test_buckets_are_created_updated_or_unchanged(
    own_nats: NatsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert run(own_nats.url, "--ledger-store-mb", "64") == 0
        made = asyncio.run(streams(own_nats.url))
        assert set(made) == {"KV_tw_ledger", "KV_tw_responses", "KV_tw_media", "KV_tw_rollouts"}
        assert (made["KV_tw_ledger"].max_bytes, made["KV_tw_ledger"].max_age) == (64 << 20, 86_400)
    flags = "--ledger-store-mb 32 --ledger-ttl-s 60 --image-store-mb 64 --image-ttl-s 30"
    assert run(own_nats.url, *flags.split(), "--response-store-bytes", "100MiB") == 0
    made = asyncio.run(streams(own_nats.url))
    assert (made["KV_tw_ledger"].max_bytes, made["KV_tw_ledger"].max_age) == (32 << 20, 60)
    assert made["KV_tw_responses"].max_bytes == 100 << 20
    assert (made["KV_tw_media"].max_bytes, made["KV_tw_media"].max_age) == (64 << 20, 30)
    assert "tw_ledger: 33,554,432 bytes, entries expire after 60 s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (
            ["--ledger-store-mb", "10000000"],
            "bucket tw_ledger: insufficient storage resources available",
        ),
        (["--connect-timeout-s", "0.3"], "no NATS server at nats://127.0.0.1:"),
    ],
)
def test_failure_is_one_line(
    nats: NatsServer, argv: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"nats://127.0.0.1:{free_port()}" if "timeout" in argv[0] else nats.url
    assert run(url, *argv) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"turnwire buckets: {wanted}")


def test_user_who_may_not_make_buckets_is_told_so(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the right the server does not answer."""

    async def unanswered(*_: Any) -> None:
        raise TimedOut("no answer within 5 s")

    monkeypatch.setattr(commands, "create_bucket", unanswered)
    assert run(nats.url) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("no answer within 5 s; may this user create streams?")


async def test_lost_buckets_are_made_again(own_nats: NatsServer) -> None:
    """One bucket, and all of them with the server's storage."""
    config = BucketsConfig(bus=BusConfig(nats_url=own_nats.url), ledger_store_mb=64)
    await make_buckets(config)
    all_names = {*await streams(own_nats.url)}
    assert len(all_names) == 4
    keeping = asyncio.create_task(keep_buckets(config, 0.1))

    async def complete() -> bool:
        return {*await streams(own_nats.url)} == all_names

    client = await nats_py.connect(own_nats.url)
    await client.jetstream().delete_stream("KV_tw_media")
    await client.close()
    await until(complete)
    own_nats.kill()
    own_nats.lose_storage()
    own_nats.start()
    await until(complete)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
