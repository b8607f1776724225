"""`turnwire connect` and `turnwire catalog` against a server: what they print, write and refuse."""

import asyncio
import json
import os
import ssl
import sys
import tomllib
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from schemas.control import ModelCard
from services.cli.connect.server import ServerError, base_url, read_models
from services.cli.main import main
from services.frontend.apis.models.documents import listing, names
from tests.kit.certificates import Authority

CARDS = [
    ModelCard("acme/coder", aliases=["gpt-5.5"], max_model_len=131_072, reasoning=True, created=1),
    ModelCard("small", max_model_len=32_768, max_output_tokens=4096),
]


class Server:
    def __init__(self, url: str) -> None:
        self.url = url
        self.key: str | None = None
        self.cards = CARDS


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    async def models(request: web.Request) -> web.Response:
        if held.key and request.headers.get("authorization") != f"Bearer {held.key}":
            return web.Response(status=401)
        return web.json_response(listing(names(held.cards), {}))

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    held = Server(f"http://127.0.0.1:{runner.addresses[0][1]}")
    yield held
    await runner.cleanup()


async def run(*argv: str) -> int:
    return await asyncio.to_thread(main, argv)


async def test_library_has_no_settings(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("connect", "ai-sdk", "--url", server.url) == 0
    assert f'baseURL: "{server.url}/v1"' in capsys.readouterr().out
    assert await run("connect", "ai-sdk", "--url", server.url, "--write") == 2
    assert "library" in capsys.readouterr().err


PLUGIN = """
from services.cli.connect.client import AgentClient, ClientPlan, ClientSettings, Target

def make_settings(target: Target) -> ClientPlan:
    return ClientPlan([ClientSettings("~/.mine.json", "json", {"url": target.url, "model": target.model.id})], "mine --now")

CLIENT = AgentClient("My client", make_settings, apis=("chat",))
"""


async def test_package_adds_a_client(server: Server, tmp_path: Path) -> None:
    (tmp_path / "my_package.py").write_text(PLUGIN)
    info = tmp_path / "my_package-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[turnwire.clients]\nmine = my_package:CLIENT\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}

    async def turnwire(*argv: str) -> tuple[int | None, str]:
        command = [sys.executable, "-m", "services.cli.main", *argv]
        process = await asyncio.create_subprocess_exec(
            *command, env=env, stdout=PIPE, stderr=STDOUT
        )
        output, _ = await process.communicate()
        return process.returncode, output.decode()

    assert "mine" in (await turnwire("--help"))[1]
    assert "mine" in (await turnwire("connect", "--help"))[1]
    status, output = await turnwire("connect", "mine", "--url", server.url)
    assert (status, "start with: mine --now" in output, f'"url": "{server.url}"' in output) == (
        0,
        True,
        True,
    )
    status, output = await turnwire("connect", "mine", "--url", server.url, "--api", "messages")
    assert (status, output) == (2, "turnwire connect: My client uses chat, not messages\n")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://h:1/", "http://h:1"),
        ("http://h:1/v1", "http://h:1"),
        ("https://h/x/v1/", "https://h/x"),
        ("h:1", "http://h:1"),
    ],
)
def test_address_becomes_a_base_url(given: str, expected: str) -> None:
    assert base_url(given) == expected


async def test_models_of_a_server_are_read(server: Server) -> None:
    served = await asyncio.to_thread(read_models, server.url + "/v1", None)
    assert [
        (model.id, model.window, model.longest, model.supports("thinking"))
        for model in served.models
    ] == [
        ("acme/coder", 131_072, 131_072, True),
        ("gpt-5.5", 131_072, 131_072, True),
        ("small", 32_768, 4096, False),
    ]
    with pytest.raises(ServerError, match=r"serves no x; it serves: acme/coder, gpt-5\.5, small"):
        served.choose("x")
    server.key = "right"
    with pytest.raises(ServerError, match="requires a key: pass one with --key"):
        await asyncio.to_thread(read_models, server.url, None)
    with pytest.raises(ServerError, match="refuses this key"):
        await asyncio.to_thread(read_models, server.url, "wrong")
    assert (await asyncio.to_thread(read_models, server.url, "right")).models


async def test_unknown_authority_is_explained(tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*Authority("private").write(tmp_path, "server"))
    async with await asyncio.start_server(
        lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context
    ) as https:
        address = "https://{}:{}".format(*https.sockets[0].getsockname())
        with pytest.raises(
            ServerError, match="if your own authority signed the certificate: SSL_CERT_FILE=FILE"
        ):
            await asyncio.to_thread(read_models, address, None)


async def test_server_without_http_is_explained() -> None:
    def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_name":"bus"} \r\n')

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as other:
        address = "http://{}:{}".format(*other.sockets[0].getsockname())
        with pytest.raises(
            ServerError, match=r"no Turnwire server answers at \S+ \(INFO \S+\); start one"
        ):
            await asyncio.to_thread(read_models, address, None)


@pytest.mark.parametrize("key", ["two\nlines", "a\rb", "\x00", "clé 🔑", "sk-\u2019", "tab\t"])
async def test_key_that_no_header_can_have_is_refused_and_not_printed(
    server: Server, key: str
) -> None:
    with pytest.raises(
        ServerError, match="has characters that an HTTP header cannot have"
    ) as refused:
        await asyncio.to_thread(read_models, server.url, key)
    assert key not in str(refused.value)


async def test_connect_prints_settings(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("connect", "codex", "--url", server.url, "--model", "gpt-5.5") == 0
    printed = capsys.readouterr().out
    assert tomllib.loads(printed)["model"] == "gpt-5.5"
    assert await run("connect", "claude", "--url", server.url) == 0
    assert f"export ANTHROPIC_BASE_URL={server.url}\n" in capsys.readouterr().out


async def test_connect_writes_settings(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "opencode.json").write_text('{"model": "mine/x", "theme": "t"}')
    assert (
        await run("connect", "opencode", "--url", server.url, "--write", "--dir", str(tmp_path))
        == 0
    )
    written = json.loads((tmp_path / "opencode.json").read_text())
    assert (written["model"], written["theme"]) == ("mine/x", "t")
    assert list(written["provider"]["turnwire"]["models"]) == ["acme/coder", "gpt-5.5", "small"]
    assert "opencode -m turnwire/acme/coder" in capsys.readouterr().out
    assert (
        await run(
            "connect",
            "codex",
            "--url",
            server.url,
            "--write",
            "--catalog-file",
            "--dir",
            str(tmp_path),
        )
        == 0
    )
    settings = tomllib.loads((tmp_path / "turnwire.config.toml").read_text())
    assert settings["model_catalog_json"] == str(tmp_path / "turnwire-models.json")
    models = json.loads((tmp_path / "turnwire-models.json").read_text())["models"]
    assert [model["slug"] for model in models] == ["acme/coder", "gpt-5.5", "small"]
    assert (
        await run("connect", "codex", "--url", server.url, "--write", "--dir", str(tmp_path)) == 0
    )
    assert "model_catalog_json" not in tomllib.loads(
        (tmp_path / "turnwire.config.toml").read_text()
    )


@pytest.mark.parametrize("write", [False, True])
async def test_printed_line_starts_the_client_in_a_shell(
    write: bool, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also without a settings file, and with one in a folder with a blank."""
    program = tmp_path / "copilot"
    program.write_text('#!/bin/sh\necho "$COPILOT_MODEL"\n')
    program.chmod(0o755)
    folder = tmp_path / "my folder"
    arguments = ("connect", "copilot", "--url", server.url, "--dir", str(folder))
    assert await run(*arguments, *(["--write"] if write else [])) == 0
    printed = capsys.readouterr().out
    if write:
        printed = next(
            line for line in printed.splitlines() if line.startswith("Start ")
        ).partition("with:")[2]
    ran = await asyncio.create_subprocess_exec(
        "sh", "-ec", printed, stdout=PIPE, env={"PATH": f"{tmp_path}:/bin"}
    )
    printed_by_it, _ = await ran.communicate()
    assert printed_by_it == b"acme/coder\n"


async def test_connect_fails_in_one_line(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("connect", "claude", "--url", "127.0.0.1:1") == 1
    assert "no Turnwire server answers at http://127.0.0.1:1" in capsys.readouterr().err
    assert await run("connect", "claude", "--url", server.url, "--api", "chat") == 2
    assert await run("connect", "claude", "--url", server.url, "--model", "x") == 1
    server.cards = []
    assert await run("connect", "claude", "--url", server.url) == 1
    assert "serves no model" in capsys.readouterr().err


BUNDLED = {
    "models": [
        {"slug": "gpt-5.5", "base_instructions": "theirs", "context_window": 7},
        {"slug": "o", "tool_mode": "x"},
    ]
}


async def test_catalogue_comes_from_a_server(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        await run("catalog", "codex", "--url", server.url, "--model", "small", "--model", "gpt-5.5")
        == 0
    )
    made = json.loads(capsys.readouterr().out)["models"]
    assert [(model["slug"], model["context_window"]) for model in made] == [
        ("gpt-5.5", 131_072),
        ("small", 32_768),
    ]
    file = tmp_path / "models.json"
    assert await run("catalog", "codex", "--url", server.url, "-o", str(file)) == 0
    assert len(json.loads(file.read_text())["models"]) == 3
    assert f'model_catalog_json = "{file}"' in capsys.readouterr().err
    assert await run("catalog", "codex", "--url", server.url, "--model", "x") == 1


async def test_catalogue_uses_profiles_of_codex(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bundled.json"
    file.write_text(json.dumps(BUNDLED))
    arguments = ("codex", "--url", server.url, "--from", str(file))
    assert await run("catalog", *arguments) == 0
    made = {model["slug"]: model for model in json.loads(capsys.readouterr().out)["models"]}
    assert {model["base_instructions"] for model in made.values()} == {"theirs"}
    assert made["small"]["context_window"] == 32_768
    assert await run("catalog", *arguments, "--profile", "small=o") == 0
    made = {model["slug"]: model for model in json.loads(capsys.readouterr().out)["models"]}
    assert (made["small"]["tool_mode"], made["acme/coder"]["base_instructions"]) == ("x", "theirs")
    assert await run("catalog", *arguments, "--profile", "nobody") == 2
    assert "no profile nobody" in capsys.readouterr().err
    assert await run("catalog", *arguments, "--profile", "smal=o") == 2
    assert "there is no model smal, only acme/coder, gpt-5.5, small" in capsys.readouterr().err
    assert await run("catalog", "codex", "--url", server.url, "--profile", "o") == 2


async def test_profiles_come_from_a_codex_program(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "codex"
    program.write_text(
        f"#!/bin/sh\n[ \"$*\" = 'debug models --bundled' ] && echo '{json.dumps(BUNDLED)}'\n"
    )
    program.chmod(0o755)
    assert await run("catalog", "codex", "--url", server.url, "--from", str(program)) == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["base_instructions"] == "theirs"
    program.write_text("#!/bin/sh\nexit 3\n")
    assert await run("catalog", "codex", "--url", server.url, "--from", str(program)) == 1
    assert (
        await run("catalog", "codex", "--url", server.url, "--from", str(tmp_path / "absent")) == 1
    )


async def test_catalogue_comes_from_model_files(
    demo_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("codex", "--model-dir", str(demo_dir), "--model", "acme/m", "--model", "gpt-5.5")
    assert await run("catalog", *arguments, "--max-model-len", "65536") == 0
    made = json.loads(capsys.readouterr().out)["models"]
    assert [(model["slug"], model["context_window"]) for model in made] == [
        ("acme/m", 65_536),
        ("gpt-5.5", 65_536),
    ]
    assert made[0]["supported_reasoning_levels"][0]["effort"] == "medium"
