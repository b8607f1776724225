"""The findings of the doctor: ok, note, warn and fail."""

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from schemas import subjects
from schemas.control import Heartbeat, Load, ModelCard, ToolWeight
from services.cli.doctor.bus import check_bus
from services.cli.doctor.machine import check_engine, check_port
from services.cli.doctor.model import check_context, check_model, check_weights
from services.cli.doctor.peers import check_server
from services.cli.doctor.report import Finding
from services.cli.instances import Instance, announce
from services.cli.main import main
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.service import BusConfig
from services.runtime.config.stages import PreprocessorConfig, WorkerConfig
from services.worker.engines.remote import server_start
from tests.kit.engines import EMPTY_MODEL
from tests.kit.frontend import serving
from tests.kit.nats import NatsServer, free_port
from tests.kit.processes import MakeProcess, Reported
from tests.worker.fake_vllm_server import fake_vllm_server


@pytest.fixture(scope="session")
def demo(demo_dir: Path) -> str:
    return str(demo_dir)


def by_name(findings: Iterator[Finding] | list[Finding]) -> dict[str, Finding]:
    return {finding.about: finding for finding in findings}


async def test_processes_on_the_bus_are_found(
    own_nats: NatsServer, make_process: MakeProcess
) -> None:
    """On a server of its own, since other tests have processes on the shared one."""
    worker = await make_process("worker", "w", url=own_nats.url)
    worker.serve(Reported(ModelCard("m", max_model_len=4096), load=Load(running=1, slots=8)))
    makers = [
        Heartbeat("preprocessor", f"p{tokens}", load=Load(tools=ToolWeight(tokens, 66_000, client)))
        for tokens, client in ((900, "pi"), (48_000, "opencode/1.18"))
    ]
    times = {"early": -600.0, "late": 600.0, "near": 0.5}
    check = asyncio.ensure_future(check_bus(BusConfig(nats_url=own_nats.url), True, 1.2))
    while not check.done():
        worker.heartbeats.send()
        worker.bus.publish("tw.v3.beat.worker.worker-1", b"of another form")
        for name, off_s in times.items():
            heartbeat = Heartbeat("frontend", name, time=time.time() + off_s)
            worker.publish(subjects.heartbeat("frontend", name), heartbeat)
        for maker in makers:
            worker.publish(subjects.heartbeat("preprocessor", maker.id), maker)
        await asyncio.sleep(0.1)
    found = by_name(await check)
    assert found["bus"].status == "ok"
    assert "8,388,608 bytes a message" in found["bus"].text
    text = f"{worker.id} m (4096), 1 running of 8"
    assert (found["worker"].status, found["worker"].text) == ("ok", text)
    assert (found["parser"].status, found["parser"].text) == ("warn", "none")
    clocks, protocols = found["clocks"], found["protocols"]
    assert (clocks.status, protocols.status) == ("fail", "warn")
    assert "frontend early by +600 s" in clocks.text
    assert (found["store"].status, found["store"].text[-10:]) == ("note", "is missing")
    assert "frontend late by -600 s" in clocks.text
    assert "near" not in clocks.text
    assert "worker worker-1 (tw.v3)" in protocols.text
    tools = found["tools"]
    assert tools.status == "note"
    assert tools.text.startswith("48,000 of 66,000 tokens")
    assert "(opencode/1.18): --defer-tools" in tools.text


@pytest.mark.usefixtures("quick_tokenizer")
def test_complete_model_is_ok(demo: str) -> None:
    found = by_name(
        list(check_model(WorkerConfig(model=demo), PreprocessorConfig(model=demo), None))
    )
    good = ["tokenizer", "template", "parser", "history", "turns", "context"]
    statuses = dict.fromkeys(good, "ok") | {"images": "note", "weights": "note"}
    assert {name: finding.status for name, finding in found.items()} == statuses
    assert "262144 tokens" in found["context"].text


@pytest.mark.usefixtures("quick_tokenizer")
def test_model_that_does_not_fit_the_settings_is_reported(demo: str, tmp_path: Path) -> None:
    template = tmp_path / "plain.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    worker = WorkerConfig(model=demo, engine="transformers", max_model_len=1_000_000)
    preprocessor = PreprocessorConfig(model=demo, chat_template=str(template))
    found = by_name(list(check_model(worker, preprocessor, None)))
    assert (found["template"].status, found["context"].status) == ("warn", "warn")
    assert found["weights"].status == "fail"
    template.write_text("{% if %}")
    (broken,) = check_model(worker, preprocessor, None)
    assert (broken.status, broken.about) == ("fail", "model")


def test_engine_over_a_server_needs_no_weights(demo: str) -> None:
    for engine in ("vllm-server", "sglang-server", "llama-server"):
        assert check_weights(WorkerConfig(model=demo, engine=engine)).status == "note"
        of_hub = check_weights(WorkerConfig(model="acme/m", engine=engine))
        assert "downloaded" not in of_hub.text


async def test_server_is_checked_by_its_url(nats: NatsServer) -> None:
    silent = check_server(f"127.0.0.1:{free_port()}", None)
    assert (silent.status, silent.about) == ("fail", "server")
    assert "no Turnwire server answers" in silent.text
    assert check_server("ftp://x", None).status == "fail"
    other = await asyncio.to_thread(check_server, f"127.0.0.1:{nats.port}", None)
    assert other.status == "fail", "another program answers"
    async with serving() as served:
        found = await asyncio.to_thread(check_server, served.url, None)
    models = "acme/served-model (131072), claude-alias (131072)"
    assert (found.status, found.text) == ("ok", f"{served.url} serves {models}")


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
    found = by_name(engine)
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


def test_running_servers_are_named_with_all_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    dead = f"http://127.0.0.1:{free_port()}"
    old = Instance(
        url=dead,
        urls=[dead],
        model="m",
        pid=1,
        nats_url="nats://127.0.0.1:1",
        models=["m", "small"],
    )
    new = Instance(
        url="http://h", urls=["http://h"], model="other", pid=2, nats_url="nats://127.0.0.1:2"
    )
    with announce(old, os.environ), announce(new, os.environ):
        assert main(["doctor", "--url", dead, "--connect-timeout-s", "0.2"]) == 1
    printed = capsys.readouterr().out
    assert f"turnwire up serves m, small at {dead}\n" in printed
    assert "turnwire up serves other at http://h; not examined, unless with --url" in printed
    assert "nats://127.0.0.1:1" in printed
    assert "nats://127.0.0.1:2" not in printed
    assert "none configured" not in printed


def test_report_has_no_secrets_and_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    bus = ["--nats-url", "nats://me:secret@127.0.0.1:1", "--connect-timeout-s", "0.2"]
    assert main(["doctor", "--engine", "vllm", *bus]) == 1
    printed = capsys.readouterr().out
    assert "secret" not in printed
    assert "\x1b" not in printed
    words = [line.split()[0] for line in printed.splitlines()]
    assert set(words) <= {"ok", "note", "warn", "fail"}
    assert "--engine vllm needs a --model" in printed
    assert "settings      bus.nats_url = nats://***@127.0.0.1:1 (--nats-url); " in printed
