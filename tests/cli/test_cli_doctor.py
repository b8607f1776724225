"""The findings of the doctor: ok, note, warn and fail."""

import asyncio
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import Token

from schemas.control import Heartbeat, Load, ModelCard
from services.cli.doctor import bus as doctor_bus
from services.cli.doctor import command as doctor
from services.cli.doctor import machine as doctor_machine
from services.cli.doctor import model as doctor_model
from services.cli.doctor.report import Finding
from services.runtime.config import BusConfig, FrontendConfig, PreprocessorConfig, WorkerConfig
from services.runtime.config.loader import Sources
from tests.cli.running import MAIN
from tests.kit.models import built_once
from tests.kit.nats import NatsServer
from tests.kit.processes import MakeProcess, Reported
from tests.kit.vision_model import build_vision_model


@pytest.fixture(scope="session")
def demo(demo_dir: Path) -> str:
    return str(demo_dir)


def by_name(findings: Iterator[Finding] | list[Finding]) -> dict[str, Finding]:
    return {finding.about: finding for finding in findings}


async def test_bus_and_its_worker_are_found(
    own_nats: NatsServer, make_process: MakeProcess
) -> None:
    """On a server of its own, since other tests have processes on the shared one."""
    worker = await make_process("worker", "w", url=own_nats.url)
    worker.serve(Reported(ModelCard("m", max_model_len=4096), load=Load(running=1, slots=8)))
    check = asyncio.ensure_future(doctor_bus.check(BusConfig(nats_url=own_nats.url), True, 1.2))
    while not check.done():
        worker.heartbeats.send()
        await asyncio.sleep(0.1)
    found = by_name(await check)
    assert found["bus"].status == "ok"
    assert "8,388,608 bytes a message" in found["bus"].text
    assert (found["worker"].status, found["worker"].text) == (
        "ok",
        f"{worker.id} m (4096), 1 running of 8",
    )
    assert (found["parser"].status, found["parser"].text) == ("warn", "none")


async def test_processes_of_another_protocol_are_named(
    own_nats: NatsServer, make_process: MakeProcess
) -> None:
    sender = await make_process("worker", "w", url=own_nats.url)
    check = asyncio.ensure_future(doctor_bus.check(BusConfig(nats_url=own_nats.url), True, 1.2))
    while not check.done():
        for stage in ("parser", "worker"):
            sender.bus.publish(f"tw.v3.beat.{stage}.{stage}-1", b"of another form")
        await asyncio.sleep(0.1)
    found = by_name(await check)["protocols"]
    assert found.status == "warn"
    assert "parser parser-1 (tw.v3); worker worker-1 (tw.v3)" in found.text
    assert "not used" in found.text


async def test_missing_bus_is_a_failure_only_if_it_was_named() -> None:
    config = BusConfig(nats_url="nats://user:secret@127.0.0.1:1", connect_timeout_s=0.2)
    (named,) = await doctor_bus.check(config, True, 0)
    (unnamed,) = await doctor_bus.check(config, False, 0)
    assert (named.status, unnamed.status) == ("fail", "note")
    assert "turnwire up starts one" in unnamed.text


def test_draining_process_is_described() -> None:
    beat = Heartbeat("parser", "p1", draining=True, load=Load(running=2))
    assert doctor_bus.describe(beat) == "p1, 2 running, draining"


def test_images_are_explained(
    demo: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    vision = built_once(tmp_path_factory, "qwen", lambda path: build_vision_model(path, "qwen"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"vision_config": {}}')
    found = [
        doctor_model.check_images(PreprocessorConfig(model=str(model)))
        for model in (demo, vision, tmp_path / "broken")
    ]
    assert [one.status for one in found] == ["note", "ok", "warn"]
    assert "a line in the prompt names each" in found[0].text
    assert "the model sees them as <|image_pad|>, if the engine has vision" in found[1].text
    assert "processor cannot be used" in found[2].text


def test_features_of_the_script_engine_are_listed() -> None:
    found = by_name(list(doctor_machine.check_engine(WorkerConfig(model="none"))))
    assert found["engine"].status == "ok"
    assert "guided, logit_bias" in found["engine"].text
    assert found["engine"].text.endswith("vision")
    assert found["no kv_events"] == Finding("note", "no kv_events", "its cache is simulated")


def test_missing_features_of_tensorrt_llm_have_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.worker.engines.trtllm.engine.version", lambda _name: "1.3.0rc15")
    config = WorkerConfig(
        model=None,  # type: ignore[arg-type]
        engine="trtllm",
        engine_args={"guided_decoding_backend": None},
    )
    found = by_name(list(doctor_machine.check_engine(config)))
    assert found["engine"].text.startswith("trtllm 1.3.0rc15: kv_events, logit_bias, ")
    assert found["no min_p"].text == "TensorRT-LLM 1.3.0rc15 accepts and ignores min_p"
    assert found["no guided"].text == "guided_decoding_backend is not set"
    assert "no priority" not in found


def test_missing_engine_is_a_failure() -> None:
    (missing,) = doctor_machine.check_engine(WorkerConfig(model="none", engine="nonesuch"))
    (without,) = doctor_machine.check_engine(WorkerConfig(model="none", engine="trtllm"))
    assert (missing.status, without.status) == ("fail", "fail")
    assert "not installed: in a clone, pip install" in without.text


def test_complete_model_is_ok(demo: str) -> None:
    found = by_name(
        list(doctor_model.check(WorkerConfig(model=demo), PreprocessorConfig(model=demo)))
    )
    statuses = dict.fromkeys(
        ["tokenizer", "template", "parser", "history", "turns", "context"], "ok"
    )
    statuses |= {"images": "note", "weights": "note"}
    assert {name: finding.status for name, finding in found.items()} == statuses
    assert "262144 tokens" in found["context"].text


def test_model_that_does_not_fit_the_settings_is_reported(demo: str, tmp_path: Path) -> None:
    template = tmp_path / "plain.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    worker = WorkerConfig(model=demo, engine="transformers", max_model_len=1_000_000)
    preprocessor = PreprocessorConfig(model=demo, chat_template=str(template))
    found = by_name(list(doctor_model.check(worker, preprocessor)))
    assert (found["template"].status, found["context"].status) == ("warn", "warn")
    assert found["weights"].status == "fail"
    template.write_text("{% if %}")
    (broken,) = doctor_model.check(worker, preprocessor)
    assert (broken.status, broken.about) == ("fail", "model")


@pytest.mark.parametrize(("engine", "status"), [("script", "note"), ("vllm", "warn")])
def test_missing_model_name_is_reported(engine: str, status: str) -> None:
    flags = {"engine": [Token(value=engine)], "connect_timeout_s": [Token(value="0.2")]}
    found = list(doctor.findings(Sources(flags=flags), 0))
    assert (found[-1].status, found[-1].about) == (status, "model")


def test_missing_model_is_a_failure(tmp_path: Path) -> None:
    (found,) = doctor_model.check(
        WorkerConfig(model=str(tmp_path)), PreprocessorConfig(model=str(tmp_path))
    )
    assert (found.status, found.about) == ("fail", "model")
    assert "\n" not in found.text


def test_few_files_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (256, 1024))
    assert doctor_machine.check_files().status == "warn"


def test_port_in_use_is_reported(nats: NatsServer) -> None:
    finding = doctor_machine.check_port(FrontendConfig(port=nats.port))
    assert finding.status == "note"
    assert f"port {nats.port} on 127.0.0.1 is in use" in finding.text
    assert doctor_machine.check_port(FrontendConfig(port=0)).status == "ok"


def test_wrong_settings_end_the_examination() -> None:
    slots = [Token(keyword="--slots", value="x")]
    *_, last = doctor.findings(Sources(flags={"slots": slots}), 0)
    problem = 'Invalid value for --slots: "x" is not a whole number'
    assert last == Finding("fail", "settings", problem)


@pytest.mark.slow
def test_only_the_findings_report_a_missing_torch(demo: str) -> None:
    """transformers prints a notice of its own."""
    find = "lambda name, *more: None if name == 'torch' else found(name, *more)"
    without = f"import importlib.util; found = importlib.util.find_spec; importlib.util.find_spec = {find}"
    command = (
        f"{without}; import sys; from services.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    options = ["doctor", "--model", demo, "--listen-s", "0", "--connect-timeout-s", "0.2"]
    done = subprocess.run(
        [sys.executable, "-c", command, *options], capture_output=True, text=True, check=False
    )
    assert "ok   tokenizer" in done.stdout
    assert done.stderr == ""


def test_report_has_no_secrets_and_no_colours(demo: str) -> None:
    flags = ["--model", demo, "--connect-timeout-s", "0.2"]
    command = [*MAIN, "doctor", *flags, "--nats-url", "nats://me:secret@127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "secret" not in done.stdout
    assert "\x1b" not in done.stdout
    words = [line.split()[0] for line in done.stdout.splitlines()]
    assert set(words) <= {"ok", "note", "warn", "fail"}
    assert "settings      bus.nats_url = nats://***@127.0.0.1:1 (--nats-url); " in done.stdout
