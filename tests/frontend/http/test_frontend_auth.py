"""API keys: files, hashes, both headers, open paths."""

import hashlib
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from services.frontend.http.auth import find_key, load_keys
from services.frontend.http.keys import Limits
from services.runtime.config import FrontendConfig
from tests.kit.frontend import MODEL, log_into, serving
from tests.kit.waiting import eventually

ASK = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
HASHES = {key: hashlib.sha256(key.encode()).hexdigest() for key in ("alpha", "beta")}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# our keys\n\nteam-a:{HASHES['alpha']}\n  {HASHES['beta'].upper()}  \n")
    return path


def test_key_has_the_name_of_its_line(keys: Path) -> None:
    known = load_keys(str(keys), Limits())
    for text, name in (("alpha", "team-a"), ("beta", HASHES["beta"][:8])):
        key = find_key(known, text)
        assert key is not None
        assert key.name == name
    for text in ("gamma", "", "\udcff"):
        assert find_key(known, text) is None


@pytest.mark.parametrize("line", ["alpha", "name:alpha", "a b:" + "0" * 64, "n:" + "0" * 63])
def test_malformed_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# x\n{line}\n")
    with pytest.raises(ValueError, match=f"{path}:2: not a key"):
        load_keys(str(path), Limits())


async def test_frontend_does_not_start_without_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with pytest.raises(FileNotFoundError):
        async with serving(config=FrontendConfig(api_keys_file=str(path))):
            pass
    path.write_text("# none yet\n")
    with pytest.raises(ValueError, match="holds no keys"):
        async with serving(config=FrontendConfig(api_keys_file=str(path))):
            pass


@pytest.mark.parametrize("end", ["deleted", "", "# nobody\n"])
async def test_last_key_can_be_revoked(keys: Path, end: str) -> None:
    lines: list[MutableMapping[str, Any]] = []
    async with (
        serving(config=FrontendConfig(api_keys_file=str(keys))) as served,
        ClientSession(served.url) as http,
    ):

        async def status(key: str = "alpha", path: str = "/v1/models") -> int:
            return (await http.get(path, headers={"x-api-key": key})).status

        before = keys.read_text()
        assert await status() == 200
        if end == "deleted":
            keys.unlink()
        else:
            keys.write_text(end)
        served.callers.reload(log_into(lines))
        assert lines == [{"event": "keys.none_valid", "file": str(keys), "log_level": "warning"}]
        assert [await status(), await status("beta"), await status(path="/live")] == [401, 401, 200]
        assert (await http.get("/v1/models")).status == 401
        assert not served.callers.open_to_all
        keys.write_text(before)
        served.callers.reload(log_into(lines))
        assert await status() == 200


@pytest.mark.parametrize("damage", ["malformed", "binary", "directory"])
async def test_key_file_that_cannot_be_read_changes_nothing(keys: Path, damage: str) -> None:
    async with (
        serving(config=FrontendConfig(api_keys_file=str(keys))) as served,
        ClientSession(served.url) as http,
    ):
        if damage == "directory":
            keys.unlink()
            keys.mkdir()
        else:
            keys.write_bytes(b"alpha\n" if damage == "malformed" else b"\xff\xfe")
        with pytest.raises((ValueError, OSError)):
            served.callers.reload(log_into([]))
        assert (await http.get("/v1/models", headers={"x-api-key": "alpha"})).status == 200
        assert (await http.get("/v1/models", headers={"x-api-key": "gamma"})).status == 401


@pytest.mark.slow
async def test_deleted_key_file_is_noticed(keys: Path) -> None:
    async with (
        serving(config=FrontendConfig(api_keys_file=str(keys))) as served,
        ClientSession(served.url) as http,
    ):
        keys.unlink()
        await eventually(lambda: "keys.none_valid" in [line["event"] for line in served.lines])
        assert (await http.get("/v1/models", headers={"x-api-key": "alpha"})).status == 401


@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        ({"x-api-key": "alpha"}, "team-a"),
        ({"authorization": "Bearer alpha"}, "team-a"),
        ({"authorization": "bearer  beta"}, HASHES["beta"][:8]),
        ({"x-api-key": "wrong", "authorization": "Bearer alpha"}, "team-a"),
    ],
)
async def test_valid_key_is_accepted(keys: Path, headers: dict[str, str], tenant: str) -> None:
    config = FrontendConfig(api_keys_file=str(keys))
    async with serving(config=config) as served, ClientSession(served.url) as http:
        response = await http.post("/v1/messages", json=ASK, headers=headers)
        assert response.status == 200
    assert served.gateway.turns[0].conversation.client.tenant == tenant
    assert served.lines[-1]["tenant"] == tenant


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({}, "x-api-key header is required"),
        ({"x-api-key": "wrong"}, "invalid x-api-key"),
        ({"authorization": "Bearer wrong"}, "invalid x-api-key"),
        ({"authorization": "Basic alpha"}, "x-api-key header is required"),
    ],
)
async def test_invalid_key_is_refused(keys: Path, headers: dict[str, str], message: str) -> None:
    config = FrontendConfig(api_keys_file=str(keys))
    async with serving(config=config) as served, ClientSession(served.url) as http:
        for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/tokenize"):
            response = await http.post(path, json=ASK, headers=headers)
            assert response.status == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.headers["x-should-retry"] == "false"
            error = (await response.json())["error"]
            assert (error["type"], error["message"]) == ("authentication_error", message)
        openai = await http.post("/v1/responses", json=ASK, headers=headers)
        assert (await openai.json())["error"]["code"] == "invalid_api_key"
    assert served.gateway.turns == []
    assert served.gateway.counted == []


@pytest.mark.parametrize("path", ["/live", "/ready", "/health", "/metrics", "/", "/api/hello"])
async def test_open_path_needs_no_key(keys: Path, path: str) -> None:
    config = FrontendConfig(api_keys_file=str(keys))
    async with serving(config=config) as served, ClientSession(served.url) as http:
        assert (await http.get(path)).status == 200
