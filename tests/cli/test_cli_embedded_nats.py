"""The embedded server: its environment and its address."""

import asyncio
import os
from pathlib import Path

import pytest

from services.cli.up.embedded_nats import GO, EmbeddedNats


def test_settings_of_go_in_the_environment_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GO:
        monkeypatch.delenv(name, raising=False)
    server = EmbeddedNats(tmp_path, tmp_path)
    assert server.spec.env == GO
    monkeypatch.setenv("GOMAXPROCS", "3")
    assert server.spec.env == {name: value for name, value in GO.items() if name != "GOMAXPROCS"}


async def test_it_reports_its_address_and_keeps_the_port(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path, tmp_path)
    process = await asyncio.create_subprocess_exec(
        *server.spec.command, env={**os.environ, **server.spec.env}, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        url = await asyncio.wait_for(server.url(process.pid), 60)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        assert (await reader.readline()).startswith(b"INFO ")
        writer.close()
        assert f'"port":{url.rpartition(":")[2]},' in (tmp_path / "nats.conf").read_text()
    finally:
        process.kill()
        await process.wait()
