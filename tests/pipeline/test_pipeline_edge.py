"""A frontend with HTTPS and keys with limits, both of which are replaced while it serves."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from services.cli.main import main
from tests.kit.certificates import Authority, pem
from tests.kit.messages_client import body, say
from tests.kit.stack import Stack
from tests.kit.waiting import until


class Guarded:
    """A frontend with TLS and keys, and the files of its operator."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self.keys = directory / "keys"
        self._capsys = capsys
        self.key = self.make_key("ops", "concurrency=1", "rpm=600")
        self.url = ""

    def make_key(self, *arguments: str) -> str:
        assert main(["key", *arguments, "--file", str(self.keys)]) == 0
        return self._capsys.readouterr().out.strip()

    def client(self, key: str, authority: Authority) -> aiohttp.ClientSession:
        trusted = ssl.create_default_context(cadata=pem(authority.certificate).decode())
        # Connections stay open however long a wait takes.
        connector = aiohttp.TCPConnector(ssl=trusted, keepalive_timeout=600)
        headers = {"x-api-key": key}
        return aiohttp.ClientSession(self.url, connector=connector, headers=headers)

    async def is_served(self, key: str, authority: Authority) -> bool:
        """Whether a new connection is."""
        async with self.client(key, authority) as client:
            try:
                return await status(client) == 200
            except aiohttp.ClientConnectionError:
                return False


async def status(client: aiohttp.ClientSession) -> int:
    async with client.post("/v1/messages", json=body(say("</think>hello"))) as response:
        assert response.status != 200 or "hello" in await response.text()
        return response.status


@pytest.fixture
def first() -> Authority:
    return Authority("first")


@pytest.fixture
def guarded(
    stack: Stack, first: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Guarded]:
    found = Guarded(tmp_path, capsys)
    certificate, key = first.write(tmp_path, "server")
    files = {"tls_cert_file": certificate, "tls_key_file": key, "api_keys_file": found.keys}
    child = stack.start("frontend", **files, head_timeout_s=1)
    found.url = child.url.replace("http:", "https:")
    try:
        yield found
    finally:
        child.kill()
        stack.children.remove(child)


async def test_keys_and_certificates_are_replaced_while_it_serves(
    guarded: Guarded, first: Authority
) -> None:
    await until(lambda: guarded.is_served(guarded.key, first))
    assert not await guarded.is_served("wrong", first)
    other = guarded.make_key("team")
    await until(lambda: guarded.is_served(other, first))
    async with guarded.client(guarded.key, first) as ops, guarded.client(other, first) as team:
        async with ops.post("/v1/messages", json=body(say("</think>hello"))) as response:
            assert response.headers["anthropic-ratelimit-requests-limit"] == "600"
        assert await status(team) == 200
        lines = guarded.keys.read_text().splitlines()
        guarded.keys.write_text("\n".join(line for line in lines if not line.startswith("ops:")))

        async def is_refused() -> bool:
            return await status(ops) == 401

        await until(is_refused)
        second = Authority("second")
        second.write(guarded.directory, "server")
        await until(lambda: guarded.is_served(other, second))
        assert not await guarded.is_served(other, first)
        assert await status(team) == 200, "an open connection keeps its certificate"
