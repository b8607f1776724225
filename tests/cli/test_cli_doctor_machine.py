"""The findings of the doctor on the machine: its engine, its ports."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from services.cli.doctor.machine import check_engine, check_port
from services.cli.doctor.model import check_context
from services.cli.doctor.report import Finding
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.stages import WorkerConfig
from services.worker.engines.remote import server_start
from tests.kit.engines import EMPTY_MODEL
from tests.kit.nats import NatsServer, free_port
from tests.worker.fake_vllm_server import fake_vllm_server


async def test_each_inference_server_is_named_with_the_flags_that_it_misses(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(EMPTY_MODEL)
    dead = f"http://127.0.0.1:{free_port()}/v1"
    worker = WorkerConfig(model=str(tmp_path), engine="vllm-server", max_model_len=4000)

    def examine(urls: str) -> Iterator[Finding]:
        served = yield from check_engine(replace(worker, engine_url=urls))
        yield check_context(worker, served)

    options = {"max_model_len": 2048, "scheduling_policy": "fcfs", "reports_cached": False}
    async with fake_vllm_server(**options) as server:
        async with asyncio.timeout(server_start.START_S / 2):
            first, *rest = await asyncio.to_thread(list, examine(f"{dead},{server.url}"))
    assert first.text.startswith(f"{dead}: vllm-server: no inference server answers")
    assert "leave out the /v1" in first.text
    *engine, context = rest
    assert all(finding.text.startswith(f"{server.url}: ") for finding in engine)
    found = {finding.about: finding for finding in engine}
    assert "--scheduling-policy priority" in found["no priority"].text
    assert "--enable-prompt-tokens-details" in found["no salt"].text
    text = "4000 tokens are configured, the engine takes 2048"
    assert (context.status, context.text) == ("warn", text)


def test_address_that_cannot_work_is_reported() -> None:
    worker = WorkerConfig(model="acme/m", engine="vllm-server", engine_url="http://a,http://a/")
    (finding,) = check_engine(worker)
    assert (finding.status, finding.about) == ("fail", "engine")
    assert "http://a/ is there twice" in finding.text


def test_port_in_use_is_reported(nats: NatsServer) -> None:
    finding = check_port(FrontendConfig(port=nats.port))
    assert finding.status == "note"
    assert f"port {nats.port} on 127.0.0.1 is in use" in finding.text
    assert check_port(FrontendConfig(port=0)).status == "ok"
