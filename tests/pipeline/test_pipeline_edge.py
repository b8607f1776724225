"""A frontend with HTTPS and keys, both of which are replaced while it serves."""

import hashlib
import ssl
from pathlib import Path

import aiohttp

from tests.kit.certificates import Authority, pem
from tests.kit.messages_client import body, say
from tests.kit.stack import Stack
from tests.kit.waiting import until


def write_keys(file: Path, *keys: str) -> None:
    hashes = (hashlib.sha256(key.encode()).hexdigest() for key in keys)
    file.write_text("".join(f"{value}\n" for value in hashes))


async def test_keys_and_certificates_are_replaced_while_it_serves(
    stack: Stack, tmp_path: Path
) -> None:
    old, new, keys = Authority("old"), Authority("new"), tmp_path / "keys"
    write_keys(keys, "first")
    certificate, key = old.write(tmp_path, "server")
    files = {"tls_cert_file": certificate, "tls_key_file": key, "api_keys_file": keys}
    child = stack.start("frontend", **files)
    url = child.url.replace("http:", "https:") + "/v1/messages"

    async def is_served(key: str, authority: Authority) -> bool:
        """Whether a new connection is."""
        trusted = ssl.create_default_context(cadata=pem(authority.certificate).decode())
        connector = aiohttp.TCPConnector(ssl=trusted)
        async with aiohttp.ClientSession(connector=connector, headers={"x-api-key": key}) as http:
            try:
                async with http.post(url, json=body(say("</think>hello"))) as response:
                    assert response.status != 200 or "hello" in await response.text()
                    return response.status == 200
            except aiohttp.ClientConnectionError:
                return False

    try:
        await until(lambda: is_served("first", old))
        assert not await is_served("second", old)
        write_keys(keys, "second")
        await until(lambda: is_served("second", old))
        assert not await is_served("first", old)
        new.write(tmp_path, "server")
        await until(lambda: is_served("second", new))
        assert not await is_served("second", old)
    finally:
        child.kill()
        stack.children.remove(child)
