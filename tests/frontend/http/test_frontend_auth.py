"""API keys: files, hashes, both headers, open paths."""

import hashlib
from pathlib import Path

import pytest
from aiohttp import ClientSession

from services.frontend.http.auth import KeyRing
from services.runtime.config import FrontendConfig
from tests.frontend.frontend_fakes import MODEL, serving

ASK = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
HASHES = {key: hashlib.sha256(key.encode()).hexdigest() for key in ("alpha", "beta")}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# our keys\n\nteam-a:{HASHES['alpha']}\n  {HASHES['beta'].upper()}  \n")
    return path


def test_names_of_keys(keys: Path) -> None:
    ring = KeyRing.load(str(keys))
    for text, name in (("alpha", "team-a"), ("beta", HASHES["beta"][:8])):
        key = ring.find(text)
        assert key is not None
        assert key.name == name
    for text in ("gamma", "", "\udcff"):
        assert ring.find(text) is None


@pytest.mark.parametrize("line", ["alpha", "name:alpha", "a b:" + "0" * 64, "n:" + "0" * 63])
def test_a_line_that_is_no_key_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# x\n{line}\n")
    with pytest.raises(ValueError, match=f"{path}:2: not a key"):
        KeyRing.load(str(path))


def test_a_file_without_keys_would_lock_everybody_out(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# none yet\n")
    with pytest.raises(ValueError, match="holds no keys"):
        KeyRing.load(str(path))


@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        ({"x-api-key": "alpha"}, "team-a"),
        ({"authorization": "Bearer alpha"}, "team-a"),
        ({"authorization": "bearer  beta"}, HASHES["beta"][:8]),
        ({"x-api-key": "wrong", "authorization": "Bearer alpha"}, "team-a"),
    ],
)
async def test_good_keys(keys: Path, headers: dict[str, str], tenant: str) -> None:
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
async def test_bad_keys(keys: Path, headers: dict[str, str], message: str) -> None:
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
async def test_open_paths(keys: Path, path: str) -> None:
    config = FrontendConfig(api_keys_file=str(keys))
    async with serving(config=config) as served, ClientSession(served.url) as http:
        assert (await http.get(path)).status == 200
