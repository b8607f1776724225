"""`turnwire connect` against a server: what it prints, writes and refuses."""

import asyncio
import json
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from schemas.control import ModelCard
from services.cli.connect.client import ENTRY_POINTS
from services.cli.connect.server import ServerError, base_url, read_models
from services.cli.main import main
from services.frontend.apis.models.documents import listing, names
from tests.kit.installing import install


class Server:
    """Serves models, to holders of its key if it has one."""

    def __init__(self) -> None:
        self.url = ""
        self.key: str | None = None
        self.cards = [
            ModelCard(
                "acme/coder", aliases=["gpt-5.5"], max_model_len=131_072, reasoning=True, created=1
            ),
            ModelCard("small", max_model_len=32_768, max_output_tokens=4096),
        ]

    async def models(self, request: web.Request) -> web.Response:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.Response(status=401)
        return web.json_response(listing(names(self.cards), {}))


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    app = web.Application()
    app.router.add_get("/v1/models", server.models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


class Command:
    """Runs `turnwire` in a thread; has what it printed last."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    async def run(self, *argv: str) -> int:
        status = await asyncio.to_thread(main, argv)
        self.out, self.err = self._capsys.readouterr()
        return status


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def test_address_becomes_a_base_url() -> None:
    for address, expected in (
        ("http://h:1/v1", "http://h:1"),
        ("https://h/x/v1/", "https://h/x"),
        ("h:1", "http://h:1"),
    ):
        assert base_url(address) == expected


async def test_models_of_a_server_are_read(server: Server) -> None:
    served = await asyncio.to_thread(read_models, server.url + "/v1", None)
    coder, alias, small = served.models
    assert (coder.id, coder.window, coder.longest) == ("acme/coder", 131_072, 131_072)
    assert (alias.id, alias.window, alias.supports("thinking")) == ("gpt-5.5", 131_072, True)
    assert (small.id, small.longest, small.supports("thinking")) == ("small", 4096, False)
    with pytest.raises(ServerError, match=r"serves no x; it serves: acme/coder, gpt-5\.5, small"):
        served.choose("x")
    server.key = "right"
    with pytest.raises(ServerError, match="requires a key: pass one with --key"):
        await asyncio.to_thread(read_models, server.url, None)
    with pytest.raises(ServerError, match="refuses this key"):
        await asyncio.to_thread(read_models, server.url, "wrong")
    served = await asyncio.to_thread(read_models, server.url, "right")
    with pytest.raises(ServerError, match=r"no x that this key may use; it may use: acme/coder, "):
        served.choose("x")


def test_key_that_no_header_can_have_is_refused_and_not_printed() -> None:
    reason = "has characters that an HTTP header cannot have"
    with pytest.raises(ServerError, match=reason) as refused:
        read_models("http://127.0.0.1:1", "two\nlines")
    assert "lines" not in str(refused.value)


async def test_connect_prints_settings(server: Server, command: Command) -> None:
    at = ("--url", server.url)
    assert await command.run("connect", "codex", *at, "--model", "gpt-5.5") == 0
    assert tomllib.loads(command.out)["model"] == "gpt-5.5"
    assert await command.run("connect", "claude", *at) == 0
    assert f"export ANTHROPIC_BASE_URL={server.url}\n" in command.out
    assert await command.run("connect", "ai-sdk", *at) == 0
    assert f'baseURL: "{server.url}/v1"' in command.out
    assert await command.run("connect", "ai-sdk", *at, "--write") == 2
    assert "library" in command.err
    assert await command.run("connect", "claude", "--url", "127.0.0.1:1") == 1
    assert "no Turnwire server answers at http://127.0.0.1:1" in command.err
    server.cards = []
    assert await command.run("connect", "claude", *at) == 1
    assert command.err.endswith("serves no model\n")
    assert await command.run("connect", "claude", *at, "--key", "k") == 1
    assert "serves no model that this key may use; its models= are in" in command.err


async def test_connect_writes_settings(server: Server, tmp_path: Path, command: Command) -> None:
    write = ("--url", server.url, "--dir", str(tmp_path), "--write")
    (tmp_path / "opencode.json").write_text('{"model": "mine/x", "theme": "t"}')
    assert await command.run("connect", "opencode", *write) == 0
    written = json.loads((tmp_path / "opencode.json").read_text())
    assert (written["model"], written["theme"]) == ("mine/x", "t")
    assert list(written["provider"]["turnwire"]["models"]) == ["acme/coder", "gpt-5.5", "small"]
    assert "opencode -m turnwire/acme/coder" in command.out
    codex, catalogue = tmp_path / "turnwire.config.toml", tmp_path / "turnwire-models.json"
    assert await command.run("connect", "codex", *write, "--catalog-file") == 0
    assert tomllib.loads(codex.read_text())["model_catalog_json"] == str(catalogue)
    models = json.loads(catalogue.read_text())["models"]
    assert [model["slug"] for model in models] == ["acme/coder", "gpt-5.5", "small"]


PLUGIN = """
from services.cli.connect.client import AgentClient, ClientPlan, ClientSettings

def make_settings(target):
    return ClientPlan([ClientSettings("~/.mine.json", "json", {"url": target.url})], "mine --now")

CLIENT = AgentClient("My client", make_settings, apis=("chat",))
"""


async def test_package_adds_a_client(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    install(tmp_path, "my_client", PLUGIN, ENTRY_POINTS, "theirs = my_client:CLIENT")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "services.cli.connect.command", raising=False)  # knew others
    theirs = ("connect", "theirs", "--url", server.url)
    assert await command.run(*theirs) == 0
    assert "start with: mine --now" in command.err + command.out
    assert f'"url": "{server.url}"' in command.out
    assert await command.run(*theirs, "--api", "messages") == 2
    assert command.err == "turnwire connect: My client uses chat, not messages\n"
