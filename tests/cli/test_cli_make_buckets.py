"""`turnwire buckets`: creates and updates buckets on a real server, waits for it, and fails with one line."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import nats as nats_py
import pytest

from services.cli.main import main
from tests.conftest import NatsServer, free_port


def run(url: str, *argv: str) -> int:
    return main(["buckets", "--nats-url", url, *argv])


def streams(url: str) -> dict[str, Any]:
    """The configurations of the server's streams."""

    async def read() -> dict[str, Any]:
        client = await nats_py.connect(url)
        found = {str(info.config.name): info.config for info in await client.jetstream().streams_info()}
        await client.close()
        return found

    return asyncio.run(read())


def test_buckets_are_created_updated_or_unchanged(own_nats: NatsServer, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert run(own_nats.url, "--ledger-store-mb", "64") == 0
        made = streams(own_nats.url)
        assert set(made) == {"KV_tw_ledger", "KV_tw_responses"}
        assert (made["KV_tw_ledger"].max_bytes, made["KV_tw_ledger"].max_age) == (64 << 20, 86_400)
    assert run(own_nats.url, "--ledger-store-mb", "32", "--ledger-ttl-s", "60", "--response-store-bytes", "100MiB") == 0
    made = streams(own_nats.url)
    assert (made["KV_tw_ledger"].max_bytes, made["KV_tw_ledger"].max_age) == (32 << 20, 60)
    assert made["KV_tw_responses"].max_bytes == 100 << 20
    assert "tw_ledger: 33,554,432 bytes, entries expire after 60 s" in capsys.readouterr().out


def test_without_a_ledger_store_there_is_no_bucket_for_it(own_nats: NatsServer) -> None:
    assert run(own_nats.url, "--ledger-store-mb", "0") == 0
    assert set(streams(own_nats.url)) == {"KV_tw_responses"}


def test_added_settings_of_a_bucket_are_reset(own_nats: NatsServer) -> None:
    async def spoil() -> None:
        client = await nats_py.connect(own_nats.url)
        js = client.jetstream()
        config = (await js.stream_info("KV_tw_ledger")).config
        await js.update_stream(config, subjects=["$KV.tw_ledger.>", "tw.v2.>"])
        await client.close()

    assert run(own_nats.url) == 0
    asyncio.run(spoil())
    assert run(own_nats.url) == 0
    assert streams(own_nats.url)["KV_tw_ledger"].subjects == ["$KV.tw_ledger.>"]


def test_command_waits_for_the_server(nats_binary: str, tmp_path: Path) -> None:
    server = NatsServer(nats_binary, str(tmp_path))
    late = threading.Timer(0.5, server.start)
    late.start()
    assert run(server.url) == 0
    late.join()
    server.kill()


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (["--ledger-store-mb", "10000000"], "bucket tw_ledger: insufficient storage resources available"),
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


def test_server_without_jetstream_is_named_after_the_deadline(
    nats_binary: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = NatsServer(nats_binary, str(tmp_path), jetstream="")
    server.start()
    assert run(server.url, "--connect-timeout-s", "1") == 1
    assert "bucket tw_ledger: the server has no JetStream" in capsys.readouterr().err
    server.kill()
