"""Browsers: pages that may, pages that may not, and servers without keys."""

from typing import Any

import pytest
from aiohttp import ClientSession, WSServerHandshakeError

from schemas.errors import Forbidden
from services.frontend.http.cors import EXPOSED, Cors
from services.runtime.config import FrontendConfig
from tests.kit.frontend import MODEL, serving

APP = "https://app.example"
EVIL = "https://evil.example"
ASK: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "hi"}],
}
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "content-type,x-api-key,anthropic-version,anthropic-dangerous-direct-browser-access",
}


def config(*origins: str) -> FrontendConfig:
    return FrontendConfig(cors_origins=list(origins))


async def test_preflight_needs_no_key_and_allows_the_requested_headers(tmp_path: Any) -> None:
    keys = tmp_path / "keys"
    keys.write_text("0" * 64)
    guarded = FrontendConfig(cors_origins=[APP], api_keys_file=str(keys))
    async with serving(config=guarded) as served, ClientSession(served.url) as http:
        for path in ("/v1/messages", "/v1/responses", "/v1/models"):
            response = await http.options(path, headers={**PREFLIGHT, "origin": APP})
            assert response.status == 204
            headers = response.headers
            assert headers["access-control-allow-origin"] == APP
            assert (
                headers["access-control-allow-headers"]
                == PREFLIGHT["access-control-request-headers"]
            )
            assert "POST" in headers["access-control-allow-methods"]
            assert headers["vary"] == "origin"


async def test_preflight_of_a_foreign_page_allows_nothing() -> None:
    async with serving(config=config(APP)) as served, ClientSession(served.url) as http:
        response = await http.options("/v1/messages", headers={**PREFLIGHT, "origin": EVIL})
        assert response.status == 405
        assert not [name for name in response.headers if name.lower().startswith("access-control")]
        assert response.headers["vary"] == "origin"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("origins", "allowed"), [((APP,), APP), (("*",), "*"), (("HTTPS://App.Example/",), APP)]
)
async def test_page_may_read_answers(origins: tuple[str, ...], allowed: str, stream: bool) -> None:
    async with serving(config=config(*origins)) as served, ClientSession(served.url) as http:
        good = await http.post(
            "/v1/messages", json={**ASK, "stream": stream}, headers={"origin": APP}
        )
        bad = await http.post("/v1/messages", json={}, headers={"origin": APP})
        assert (good.status, bad.status) == (200, 400)
        for response in (good, bad):
            assert response.headers["access-control-allow-origin"] == allowed
            exposed = response.headers["access-control-expose-headers"].split(", ")
            assert {
                "request-id",
                "retry-after",
                "anthropic-ratelimit-tokens-reset",
                "x-ratelimit-limit-tokens",
            } <= {*exposed}
        await good.read()


async def test_foreign_page_cannot_use_a_server_without_keys() -> None:
    """text/plain needs no preflight: without this, any page could have a local model run its
    prompts."""
    async with serving() as served, ClientSession(served.url) as http:
        headers = {"origin": EVIL, "content-type": "text/plain"}
        response = await http.post("/v1/messages", json=ASK, headers=headers)
        assert response.status == 403
        error = (await response.json())["error"]
        assert error["type"] == "permission_error"
        assert EVIL in error["message"]
        assert (await http.get("/v1/models", headers={"origin": EVIL})).status == 200
        assert (
            await http.post("/v1/messages", json=ASK, headers={"origin": served.url})
        ).status == 200
        with pytest.raises(WSServerHandshakeError) as caught:
            await http.ws_connect("/v1/responses", headers={"origin": EVIL})
        assert caught.value.status == 403
    assert len(served.gateway.turns) == 1


@pytest.mark.parametrize(
    ("origins", "guarded", "origin", "fine"),
    [
        ((), False, "null", False),
        ((), False, "http://other:1", False),
        ((), False, "http://here:1", True),
        ((), False, "https://here:1", False),
        ((), True, EVIL, True),
        (("*",), False, EVIL, True),
        (("null",), False, "null", True),
        ((APP,), False, APP + ".evil.example", False),
    ],
)
def test_post_is_accepted_by_origin(
    origins: tuple[str, ...], guarded: bool, origin: str, fine: bool
) -> None:
    cors = Cors(origins, guarded=guarded)
    headers = {"origin": origin, "host": "here:1"}
    if fine:
        cors.check("POST", headers, "http")
    else:
        with pytest.raises(Forbidden):
            cors.check("POST", headers, "http")
    cors.check("GET", headers, "http")
    cors.check("POST", {"host": "here:1"}, "http")


REBOUND = "rebound.example"


@pytest.mark.parametrize("port", ["", ":80", ":8000"])
@pytest.mark.parametrize(
    "path", ["/v1/messages", "/v1/chat/completions", "/v1/responses", "/v1/models", "/nothing"]
)
async def test_rebound_host_name_is_refused(path: str, port: str) -> None:
    """For the browser, the page and this server are of one origin: it sends and reads whatever the
    page asks for."""
    async with serving() as served, ClientSession(served.url) as http:
        host = REBOUND + port
        headers = {"host": host, "origin": f"http://{host}"}
        for response in (
            await http.post(path, json=ASK, headers=headers),
            await http.get(path, headers=headers),
        ):
            assert response.status == 403
            message = (await response.json())["error"]["message"]
            assert (
                message
                == f"This server has no host name '{host}'; it can be allowed with --allowed-hosts."
            )
        with pytest.raises(WSServerHandshakeError) as caught:
            await http.ws_connect("/v1/responses", headers=headers)
        assert caught.value.status == 403
        for probe in ("/live", "/ready", "/health", "/metrics"):
            assert (await http.get(probe, headers=headers)).status == 200
    assert served.gateway.turns == []


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:8000",
        "localhost.",
        "127.0.0.1:9",
        "[::1]:9",
        "10.0.0.7:8000",
        "[fe80::1]",
    ],
)
async def test_localhost_and_addresses_are_always_allowed(host: str) -> None:
    async with (
        serving(config=FrontendConfig(allowed_hosts=["llm.example"])) as served,
        ClientSession() as http,
    ):
        for name in (host, "LLM.example:443", "llm.example."):
            assert (
                await http.post(f"{served.url}/v1/messages", json=ASK, headers={"host": name})
            ).status == 200


async def test_server_with_keys_checks_only_configured_host_names(tmp_path: Any) -> None:
    keys = tmp_path / "keys"
    keys.write_text("0" * 64)
    for allowed, status in (([], 401), (["llm.example"], 403), (["*"], 401), ([REBOUND], 401)):
        config = FrontendConfig(api_keys_file=str(keys), allowed_hosts=allowed)
        async with serving(config=config) as served, ClientSession(served.url) as http:
            assert (await http.get("/v1/models", headers={"host": REBOUND})).status == status


def test_invalid_header_names_are_not_echoed() -> None:
    cors = Cors([APP], guarded=True)
    asked = {"origin": APP, "access-control-request-method": "POST"}
    answer = cors.preflight("OPTIONS", {**asked, "access-control-request-headers": "a\u00e9"})
    assert answer is not None
    assert "access-control-allow-headers" not in answer
    local = cors.preflight("OPTIONS", {**asked, "access-control-request-private-network": "true"})
    assert local is not None
    assert local["access-control-allow-private-network"] == "true"
    assert cors.preflight("OPTIONS", {"origin": APP}) is None
    assert cors.preflight("POST", asked) is None


def test_no_header_is_exposed_twice() -> None:
    names = EXPOSED.split(", ")
    assert len(set(names)) == len(names)
