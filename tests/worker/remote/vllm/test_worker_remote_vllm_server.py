"""The start over `vllm serve`: addresses, keys, certificates, and what the server reports of itself."""

import ssl
from pathlib import Path

import pytest
from aiohttp import web

from schemas.errors import EngineFailed, Invalid
from tests.kit.certificates import Authority
from tests.kit.engines import request, run
from tests.kit.nats import free_port
from tests.worker.fake_vllm_server import fake_vllm_server
from tests.worker.remote.vllm.serving import check_lacking, other_server, start, started


@pytest.mark.usefixtures("impatient")
async def test_wrong_address_is_named(model: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(EngineFailed, match=f"no inference server answers at {url}: .*connect"):
        await start(url, model)
    with pytest.raises(Invalid, match="name one inference server"):
        await start("", model)
    for answers in (
        {},
        {"version": web.json_response({"status": "ok"})},
        {"version": web.Response(text="<html>", content_type="text/html")},
    ):
        async with other_server(**answers) as url:
            with pytest.raises(EngineFailed, match=f"{url} is another kind of server"):
                await start(url, model)


async def test_server_without_the_token_interface_needs_a_flag(model: Path) -> None:
    async with fake_vllm_server(scale_out=False) as server:
        with pytest.raises(Invalid, match=r"token interface \(status 403.*--enable-scale-out"):
            await start(server.url, model)
    async with other_server(version=web.json_response({"version": "0.9"})) as url:
        with pytest.raises(Invalid, match=r"token interface \(status 404.*--enable-scale-out"):
            await start(url, model)


async def test_key_of_a_file_is_sent(model: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    async with fake_vllm_server(key="secret") as server:
        for wrong in ({}, {"engine_api_key_file": str(key)}):
            key.write_text("wrong\n")
            with pytest.raises(EngineFailed, match=r"\(--engine-api-key-file\): status 401"):
                await start(server.url, model, **wrong)
        key.write_text("secret\n")
        async with started(server, model, engine_api_key_file=str(key)) as engine:
            assert await run(engine, request())


async def test_certificate_must_be_trusted(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority("home")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.write(tmp_path, "server"))
    async with fake_vllm_server(tls=context) as server:
        with pytest.raises(EngineFailed, match=r"certificate verify failed.*SSL_CERT_FILE"):
            await start(server.url, model)
        monkeypatch.setenv("SSL_CERT_FILE", authority.write_self(tmp_path / "home.pem"))
        await start(server.url, model)


async def test_missing_metrics_are_not_an_empty_cache_without_prefixes(model: Path) -> None:
    async with fake_vllm_server() as server:
        server.kv_used = [0.2, 0.6]
        async with started(server, model) as engine:
            assert engine.load().kv_used == pytest.approx(0.4)
        server.counts = False
        info = await start(server.url, model)
        check_lacking(info, {"prefix_cache": "--disable-log-stats"})
        assert "--disable-log-stats" in info.lacking["kv_events"]
        async with started(server, model) as engine:
            assert engine.load().kv_used is None
