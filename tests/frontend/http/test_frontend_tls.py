"""TLS: HTTPS, certificates that change, clients that must have one."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector

from services.cli.main import main
from services.frontend.http.tls import Tls
from services.runtime.config.frontend import FrontendConfig
from tests.kit.bodies import messages
from tests.kit.certificates import Authority, pem
from tests.kit.frontend import Served, serving


class Client:
    """Trusts one authority, and opens a new connection for each request."""

    def __init__(
        self, served: Served, authority: Authority, certificate: tuple[str, str] | None = None
    ) -> None:
        self._url = served.url
        self._context = ssl.create_default_context(cadata=pem(authority.certificate).decode())
        if certificate:
            self._context.load_cert_chain(*certificate)

    async def send(self, method: str, path: str, **options: Any) -> tuple[int, str]:
        """Returns the status and text of the answer."""
        connector = TCPConnector(ssl=self._context)
        async with (
            ClientSession(self._url, connector=connector) as http,
            http.request(method, path, **options) as response,
        ):
            return response.status, await response.text()

    async def ask(self) -> int:
        return (await self.send("POST", "/v1/messages", json=messages()))[0]


async def test_new_certificate_holds_for_the_next_connection(tmp_path: Path) -> None:
    old, new = Authority("old"), Authority("new")
    files = old.write(tmp_path, "server")
    tls = Tls(*files, None)
    assert tls.files == list(files)
    async with serving(tls=tls) as served:
        before, after = Client(served, old), Client(served, new)
        assert await before.ask() == 200
        with pytest.raises(OSError):
            await after.ask()
        new.write(tmp_path, "server")
        tls.reload()
        assert await after.ask() == 200
        with pytest.raises(OSError):
            await before.ask()
        Path(files[1]).write_text("no key")
        with pytest.raises(ValueError, match=r"server\.key has no private key"):
            tls.reload()
        assert await after.ask() == 200


async def test_clients_must_have_a_certificate_and_probes_need_none(tmp_path: Path) -> None:
    ours, theirs = Authority("ours"), Authority("theirs")
    ca = ours.write_self(tmp_path / "ca.pem")
    config = FrontendConfig(tls_cert_file="x", tls_client_ca_file=ca)
    cert_file, key_file = ours.write(tmp_path, "server")
    tls = Tls(cert_file, key_file, ca)
    async with serving(config=config, tls=tls) as served:
        nobody = Client(served, ours)
        friend = Client(served, ours, ours.write(tmp_path, "client"))
        stranger = Client(served, ours, theirs.write(tmp_path, "other"))
        assert await friend.ask() == 200
        assert await nobody.ask() == 401
        assert (await nobody.send("GET", "/ready"))[0] == 200
        _, refusal = await nobody.send("GET", "/v1/models")
        assert "This server asks for a client certificate." in refusal
        with pytest.raises(OSError):
            await stranger.ask()
        theirs.write_self(tmp_path / "ca.pem")
        tls.reload()
        assert await stranger.ask() == 200
        with pytest.raises(OSError):
            await friend.ask()
        argv = ["health", "frontend", "--ready", f"--port={served.port}"]
        assert await asyncio.to_thread(main, [*argv, f"--tls-cert-file={cert_file}"]) == 0
        assert await asyncio.to_thread(main, argv) == 1
