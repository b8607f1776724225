"""API keys: both headers, open paths, and keys that change while the server runs."""

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
from services.runtime.config.frontend import FrontendConfig
from tests.kit.bodies import messages
from tests.kit.every import Cases
from tests.kit.frontend import log_into, serving

HASHES = {key: hashlib.sha256(key.encode()).hexdigest() for key in ("alpha", "beta")}
NONE = Limits()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# our keys\n\nteam-a:{HASHES['alpha']}\n  {HASHES['beta'].upper()}  \n")
    return path


@pytest.fixture
def config(keys: Path) -> FrontendConfig:
    return FrontendConfig(api_keys_file=str(keys))


async def test_frontend_does_not_start_without_keys(keys: Path, config: FrontendConfig) -> None:
    keys.write_text("# none yet\n")
    with pytest.raises(ValueError, match="holds no keys"):
        await serving(config=config).__aenter__()
    keys.unlink()
    with pytest.raises(FileNotFoundError):
        await serving(config=config).__aenter__()


async def test_last_key_can_be_revoked(keys: Path, config: FrontendConfig) -> None:
    lines: list[MutableMapping[str, Any]] = []
    async with serving(config=config) as served:

        async def status(key: str = "alpha", path: str = "/v1/models") -> int:
            return (await served.get(path, headers={"x-api-key": key})).status

        before = keys.read_text()
        assert await status() == 200
        for end in ("deleted", "# nobody\n"):
            if end == "deleted":
                keys.unlink()
            else:
                keys.write_text(end)
            lines.clear()
            served.callers.reload(log_into(lines))
            none = {"event": "keys.none_valid", "file": str(keys), "log_level": "warning"}
            assert lines == [none]
            open_to_all = await status(path="/live")
            assert [await status(), await status("beta"), open_to_all] == [401, 401, 200]
            assert served.lines[-2]["reason"] == "removed_key"
            assert (await served.get("/v1/models")).status == 401
        assert await status("gamma") == 401
        refused = {
            reason: served.registry.get_sample_value(
                "turnwire_unauthorized_requests_total", {"reason": reason}
            )
            for reason in ("removed_key", "wrong_key", "no_key", "expired_key")
        }
        assert refused == {"removed_key": 4, "wrong_key": 1, "no_key": 2, "expired_key": 0}
        assert not served.callers.open_to_all
        keys.write_text(before)
        served.callers.reload(log_into(lines))
        for damage in (b"alpha\n", b"\xff\xfe"):  # a file that cannot be read changes nothing
            keys.write_bytes(damage)
            with pytest.raises(ValueError):
                served.callers.reload(log_into([]))
            assert [await status(), await status("gamma")] == [200, 401]


async def test_valid_key_is_accepted_in_either_header(config: FrontendConfig, cases: Cases) -> None:
    async with serving(config=config) as served:
        for headers, tenant in (
            ({"x-api-key": "alpha"}, "team-a"),
            ({"authorization": "Bearer alpha"}, "team-a"),
            ({"authorization": "bearer  beta"}, HASHES["beta"][:8]),
            ({"x-api-key": "wrong", "authorization": "Bearer alpha"}, "team-a"),
        ):
            with cases.case(headers):
                reply = await served.post("/v1/messages", messages(), headers=headers)
                assert reply.status == 200
                assert served.gateway.conversations[-1].client.tenant == tenant
                assert served.lines[-1]["tenant"] == tenant


MISSING = (
    "x-api-key header is required: the authorization header is not `Bearer YOUR_KEY`",
    "You didn't provide an API key",
)
WRONG = ("invalid x-api-key", "Incorrect API key")


@pytest.mark.parametrize(
    ("headers", "words"),
    [({"authorization": "Basic alpha"}, MISSING), ({"x-api-key": "wrong"}, WRONG)],
    ids=["another scheme", "wrong key"],
)
async def test_invalid_key_is_refused_in_the_words_of_each_vendor(
    config: FrontendConfig, headers: dict[str, str], words: tuple[str, str], cases: Cases
) -> None:
    anthropic, openai = words
    async with serving(config=config, headers=headers) as served:
        for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/tokenize"):
            with cases.case(path):
                reply = await served.post(path, messages())
                assert reply.headers["www-authenticate"] == "Bearer"
                assert reply.headers["x-should-retry"] == "false"
                assert reply.error == (401, "authentication_error", anthropic)
        for path in ("/v1/responses", "/v1/chat/completions", "/v1/completions"):
            with cases.case(path):
                reply = await served.post(path, {})
                status, kind, message = reply.error
                assert (status, kind) == (401, "invalid_request_error")
                assert reply.json["error"]["code"] == "invalid_api_key"
                assert message.startswith(openai)
        assert served.gateway.turns == []
        assert served.gateway.counted == []
        for path in ("/live", "/ready", "/health", "/metrics", "/", "/api/hello"):
            assert (await served.get(path)).status == 200, f"{path} is open to all"


async def test_of_two_keys_the_valid_one_counts(keys: Path, config: FrontendConfig) -> None:
    keys.write_text(f"old:{HASHES['alpha']} expires=2001-01-01\nnew:{HASHES['beta']}\n")
    async with serving(config=config) as served:
        both = {"x-api-key": "alpha", "authorization": "Bearer beta"}
        assert (await served.get("/v1/models", headers=both)).status == 200
        refused = await served.post("/v1/messages", messages(), headers={"x-api-key": "alpha"})
        assert refused.error == (401, "authentication_error", "This API key has expired.")
    assert find_key(load_keys(str(keys), NONE), "\udcff") is None, "bytes that are not UTF-8"


async def test_keys_that_have_expired_when_the_file_is_read_are_logged_once(
    keys: Path, config: FrontendConfig
) -> None:
    keys.write_text(f"old:{HASHES['alpha']} expires=2001-01-01\nnew:{HASHES['beta']}\n")
    async with serving(config=config) as served:
        await served.get("/v1/models", headers={"x-api-key": "alpha"})
    expired = [entry for entry in served.lines if entry["event"] == "keys.expired"]
    assert [entry["names"] for entry in expired] == [["old"]]


def test_renewed_caller_has_the_rights_of_now(keys: Path) -> None:
    now = [1e9]
    callers = Callers(str(keys), NONE, lambda: 0.0, lambda: now[0])
    request: Any = SimpleNamespace(path="/v1/models", headers={"x-api-key": "alpha"})
    caller = callers.identify(request)
    assert callers.renew(caller).tenant == "team-a"
    keys.write_text(f"team-a:{HASHES['alpha']} rpm=5\n")
    callers.reload(structlog.get_logger())
    assert callers.renew(caller).limiter.rates()["requests"].limit == 5
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
