"""The embedded server: its environment and its address."""

import asyncio
import os
from pathlib import Path

import pytest

from services.cli.common import reserve_ports
from services.cli.observer import observing
from services.cli.up.embedded_nats import GO, MAX_PAYLOAD, EmbeddedNats
from services.runtime.config import BusConfig


def test_settings_of_go_in_the_environment_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in GO:
        monkeypatch.delenv(name, raising=False)
    assert EmbeddedNats(tmp_path, tmp_path, 4222).spec.env == GO
    monkeypatch.setenv("GOMAXPROCS", "3")
    server = EmbeddedNats(tmp_path, tmp_path, 4222)
    assert server.spec.env == {name: value for name, value in GO.items() if name != "GOMAXPROCS"}


async def test_server_listens_at_its_address(tmp_path: Path) -> None:
    (port,) = reserve_ports("127.0.0.1", 0, 1)
    server = EmbeddedNats(tmp_path, tmp_path, port)
    process = await asyncio.create_subprocess_exec(
        *server.spec.command,
        env={**os.environ, **server.spec.env},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with observing(BusConfig(nats_url=server.url, connect_timeout_s=60), "test") as bus:
            assert bus.max_payload == MAX_PAYLOAD
    finally:
        process.kill()
        await process.wait()
