"""API keys: files, hashes, both headers, open paths."""

import hashlib
from collections.abc import MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from schemas.errors import Unauthorized
from services.frontend.http.auth import Callers, anyone, find_key, load_keys
from services.frontend.http.keys import Limits
from services.runtime.config import FrontendConfig
from tests.kit.frontend import ASK, log_into, serving

HASHES = {key: hashlib.sha256(key.encode()).hexdigest() for key in ("alpha", "beta")}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# our keys\n\nteam-a:{HASHES['alpha']}\n  {HASHES['beta'].upper()}  \n")
    return path


@pytest.fixture
def config(keys: Path) -> FrontendConfig:
    return FrontendConfig(api_keys_file=str(keys))


def test_key_has_the_name_of_its_line(keys: Path) -> None:
    known = load_keys(str(keys), Limits())
    for text, name in (("alpha", "team-a"), ("beta", HASHES["beta"][:8])):
        key = find_key(known, text)
        assert key is not None
        assert key.name == name
    for text in ("gamma", "", "\udcff"):
        assert find_key(known, text) is None
    keys.write_text("# x\nalpha\n")
    with pytest.raises(ValueError, match=f"{keys}:2: not a key"):
        load_keys(str(keys), Limits())


async def test_frontend_does_not_start_without_keys(keys: Path, config: FrontendConfig) -> None:
    keys.write_text("# none yet\n")
    with pytest.raises(ValueError, match="holds no keys"):
        await serving(config=config).__aenter__()
    keys.unlink()
    with pytest.raises(FileNotFoundError):
        await serving(config=config).__aenter__()


@pytest.mark.parametrize("end", ["deleted", "# nobody\n"])
async def test_last_key_can_be_revoked(keys: Path, config: FrontendConfig, end: str) -> None:
    lines: list[MutableMapping[str, Any]] = []
    async with serving(config=config) as served:

        async def status(key: str = "alpha", path: str = "/v1/models") -> int:
            return (await served.get(path, headers={"x-api-key": key})).status

        before = keys.read_text()
        assert await status() == 200
        if end == "deleted":
            keys.unlink()
        else:
            keys.write_text(end)
        served.callers.reload(log_into(lines))
        assert lines == [{"event": "keys.none_valid", "file": str(keys), "log_level": "warning"}]
        assert [await status(), await status("beta"), await status(path="/live")] == [401, 401, 200]
        assert (await served.get("/v1/models")).status == 401
        refused = served.registry.get_sample_value("turnwire_unauthorized_requests_total")
        assert refused == 3
        assert not served.callers.open_to_all
        keys.write_text(before)
        served.callers.reload(log_into(lines))
        assert await status() == 200


@pytest.mark.parametrize("damage", [b"alpha\n", b"\xff\xfe"])
async def test_key_file_that_cannot_be_read_changes_nothing(
    keys: Path, config: FrontendConfig, damage: bytes
) -> None:
    async with serving(config=config) as served:
        keys.write_bytes(damage)
        with pytest.raises(ValueError):
            served.callers.reload(log_into([]))
        for key, status in (("alpha", 200), ("gamma", 401)):
            reply = await served.get("/v1/models", headers={"x-api-key": key})
            assert reply.status == status


async def test_valid_key_is_accepted_in_either_header(config: FrontendConfig) -> None:
    async with serving(config=config) as served:
        for headers, tenant in (
            ({"x-api-key": "alpha"}, "team-a"),
            ({"authorization": "Bearer alpha"}, "team-a"),
            ({"authorization": "bearer  beta"}, HASHES["beta"][:8]),
            ({"x-api-key": "wrong", "authorization": "Bearer alpha"}, "team-a"),
        ):
            reply = await served.post("/v1/messages", ASK, headers=headers)
            assert reply.status == 200
            assert served.gateway.conversations[-1].client.tenant == tenant
            assert served.lines[-1]["tenant"] == tenant


MISSING = ("x-api-key header is required", "You didn't provide an API key")
WRONG = ("invalid x-api-key", "Incorrect API key")


@pytest.mark.parametrize(
    ("headers", "messages"),
    [
        ({}, MISSING),
        ({"authorization": "Basic alpha"}, MISSING),
        ({"x-api-key": "wrong"}, WRONG),
        ({"authorization": "Bearer wrong"}, WRONG),
    ],
)
async def test_invalid_key_is_refused_in_the_words_of_each_vendor(
    config: FrontendConfig, headers: dict[str, str], messages: tuple[str, str]
) -> None:
    anthropic, openai = messages
    async with serving(config=config, headers=headers) as served:
        for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/tokenize"):
            reply = await served.post(path, ASK)
            assert reply.headers["www-authenticate"] == "Bearer"
            assert reply.headers["x-should-retry"] == "false"
            assert reply.error == (401, "authentication_error", anthropic)
        for path in ("/v1/responses", "/v1/chat/completions", "/v1/completions"):
            reply = await served.post(path, {})
            status, kind, message = reply.error
            assert (status, kind) == (401, "invalid_request_error")
            assert reply.json["error"]["code"] == "invalid_api_key"
            assert message.startswith(openai)
        assert served.gateway.turns == []
        assert served.gateway.counted == []
        for path in ("/live", "/ready", "/health", "/metrics", "/", "/api/hello"):
            assert (await served.get(path)).status == 200, "open to all"


async def test_of_two_keys_the_valid_one_counts(keys: Path, config: FrontendConfig) -> None:
    keys.write_text(f"old:{HASHES['alpha']} expires=2001-01-01\nnew:{HASHES['beta']}\n")
    async with serving(config=config) as served:
        both = {"x-api-key": "alpha", "authorization": "Bearer beta"}
        assert (await served.get("/v1/models", headers=both)).status == 200
        assert (await served.get("/v1/models", headers={"x-api-key": "alpha"})).status == 401


def test_renewed_caller_has_the_rights_of_now(keys: Path) -> None:
    now = [1e9]
    callers = Callers(str(keys), Limits(), lambda: 0.0, lambda: now[0])
    request: Any = SimpleNamespace(path="/v1/models", headers={"x-api-key": "alpha"})
    caller = callers.identify(request)
    assert callers.renew(caller).tenant == "team-a"
    keys.write_text(f"renamed:{HASHES['alpha']} expires=2005-01-01\n")
    callers.reload(structlog.get_logger())
    assert callers.renew(caller).tenant == "renamed"
    now[0] = 2e9
    with pytest.raises(Unauthorized, match="expired"):
        callers.renew(caller)
    keys.write_text(f"other:{HASHES['beta']}\n")
    callers.reload(structlog.get_logger())
    with pytest.raises(Unauthorized, match="not valid any more"):
        callers.renew(caller)
    assert callers.renew(anyone()).tenant is None
