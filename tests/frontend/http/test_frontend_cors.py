"""Browsers: pages that may, pages that may not, and servers without keys."""

from pathlib import Path

import pytest
from aiohttp import WSServerHandshakeError

from schemas.errors import Forbidden
from services.frontend.http.cors import Cors
from services.runtime.config.frontend import FrontendConfig
from tests.kit.bodies import CONVERSING, messages
from tests.kit.every import Cases, for_rows
from tests.kit.frontend import Served, guarded, serving

APP = "https://app.example"
EVIL = "https://evil.example"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "content-type,x-api-key,anthropic-version",
}
REBOUND = "rebound.example"


async def test_preflight_needs_no_key_and_answers_only_known_pages(tmp_path: Path) -> None:
    async with serving(config=guarded(tmp_path, cors_origins=[APP])) as served:
        for path in ("/v1/messages", "/v1/models"):
            reply = await served.send("OPTIONS", path, headers={**PREFLIGHT, "origin": APP})
            assert reply.status == 204
            asked = PREFLIGHT["access-control-request-headers"]
            assert reply.headers["access-control-allow-origin"] == APP
            assert reply.headers["access-control-allow-headers"] == asked
            assert "POST" in reply.headers["access-control-allow-methods"]
            assert reply.headers["vary"] == "origin"
        foreign = {**PREFLIGHT, "origin": EVIL}
        reply = await served.send("OPTIONS", "/v1/messages", headers=foreign)
        assert reply.status == 401
        assert not [name for name in reply.headers if name.lower().startswith("access-control")]
        assert reply.headers["vary"] == "origin"


@pytest.mark.parametrize(
    ("origin", "allowed"), [(APP, APP), ("*", "*"), ("HTTPS://App.Example/", APP)]
)
async def test_page_may_read_answers(origin: str, allowed: str) -> None:
    config = FrontendConfig(cors_origins=[origin])
    async with serving(config=config, headers={"origin": APP}) as served:
        replies = [await served.ask(), await served.ask(stream=True)]
        replies.append(await served.post("/v1/messages", {}))
        assert [reply.status for reply in replies] == [200, 200, 400]
        for reply in replies:
            assert reply.headers["access-control-allow-origin"] == allowed
            exposed = reply.headers["access-control-expose-headers"].split(", ")
            assert {"request-id", "retry-after", "x-ratelimit-limit-tokens"} <= {*exposed}


async def no_socket(served: Served, headers: dict[str, str]) -> None:
    with pytest.raises(WSServerHandshakeError) as caught:
        await served.http.ws_connect("/v1/responses", headers=headers)
    assert caught.value.status == 403


async def test_foreign_page_cannot_use_a_server_without_keys() -> None:
    """text/plain needs no preflight: without this, any page could have a local model run its
    prompts."""
    async with serving() as served:
        foreign, own = {"origin": EVIL}, {"origin": served.url}
        plain = {**foreign, "content-type": "text/plain"}
        status, kind, message = (await served.post("/v1/messages", messages(), headers=plain)).error
        assert (status, kind) == (403, "permission_error")
        assert EVIL in message
        assert (await served.get("/v1/models", headers=foreign)).status == 200
        assert (await served.post("/v1/messages", messages(), headers=own)).status == 200
        await no_socket(served, foreign)
    assert len(served.gateway.turns) == 1


@for_rows(
    [
        ((), False, "null", False),
        ((), False, "http://here:1", True),
        ((), True, EVIL, True),
        (("*",), False, EVIL, True),
        (("null",), False, "null", True),
        ((APP,), False, APP + ".evil.example", False),
    ]
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


async def test_rebound_host_name_is_refused(cases: Cases) -> None:
    """For the browser, the page and this server are of one origin: it sends and reads whatever the
    page asks for."""
    async with serving() as served:
        headers = {"host": f"{REBOUND}:8000", "origin": f"http://{REBOUND}:8000"}
        refusal = f"This server has no host name '{REBOUND}:8000'; it can be allowed with"
        for path in (*(api.path for api in CONVERSING), "/v1/models", "/nothing"):
            for method in ("GET", "POST"):
                with cases.case(path=path, method=method):
                    reply = await served.send(method, path, json=messages(), headers=headers)
                    assert reply.status == 403
                    assert reply.json["error"]["message"] == f"{refusal} --allowed-hosts."
        await no_socket(served, headers)
        for probe in ("/live", "/ready", "/health", "/metrics"):
            assert (await served.get(probe, headers=headers)).status == 200, probe
    assert served.gateway.turns == []
