"""The plan of `up` follows from flags, environment and file alone."""

import stat
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import Mock

import pytest

from services.cli.check.model import engine_problem
from services.cli.up.plan import DEMO_MODEL, prepare_state
from services.cli.up.readiness import problem_of
from services.cli.up.specs import inspector_spec, make_specs
from services.runtime.config.loader import ConfigError
from tests.cli.up_plans import child, models_file, plan


def test_demo_needs_nothing() -> None:
    made = plan()
    assert (made.demo, made.embedded_nats, made.model) == (True, True, DEMO_MODEL)
    worker, frontend = child(made, "worker-1"), child(made, "frontend-1")
    assert (worker.model, worker.served_model_name) == ("/state/demo-model", DEMO_MODEL)
    assert (worker.engine, worker.log_format) == ("script", "json")
    assert (worker.id, worker.bus.nats_url) == ("worker-1", "nats://n:1")
    assert (frontend.port, frontend.id) == (81, "frontend-1")


def test_environment_is_not_passed_as_flags() -> None:
    env = {"TURNWIRE_MODEL": "acme/m", "TURNWIRE_NATS_URL": "nats://bus:4222"}
    env["TURNWIRE_WORKER_SLOTS"] = "3"
    made = plan(env=env)
    assert (made.demo, made.embedded_nats, made.model) == (False, False, "acme/m")
    worker = child(made, "worker-1", env)
    assert (worker.model, worker.bus.nats_url, worker.slots) == ("acme/m", "nats://bus:4222", 3)


def test_processes_start_in_order_with_their_counts() -> None:
    made = plan("--workers", "2", "--frontends", "2")
    names = ["preprocessor-1", "worker-1", "worker-2", "frontend-1", "frontend-2", "parser-1"]
    assert [spec.name for spec in make_specs(made, None, [81, 82], {})] == names
    assert child(made, "frontend-2").port == 82


def test_each_inference_server_has_a_worker() -> None:
    urls = ["http://a:1", "http://b:2", "http://c:3"]
    made = plan("--model=acme/m", "--engine=vllm-server", f"--engine-url={', '.join(urls)}")
    workers = [child(made, f"worker-{number}") for number in (1, 2, 3)]
    assert [worker.engine_urls for worker in workers] == [[url] for url in urls]
    with pytest.raises(ConfigError, match="needs a --model"):
        plan("--engine=vllm-server", "--engine-url=http://a:1")


def test_state_is_made_once_with_a_private_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Mock(return_value=CompletedProcess([], 0))
    monkeypatch.setattr("subprocess.run", start)
    made = plan(state=tmp_path)
    prepare_state(made)
    key = (tmp_path / "seal.key").read_text()
    assert stat.S_IMODE((tmp_path / "seal.key").stat().st_mode) == 0o600
    (started,) = start.call_args.args
    assert started[-2:] == ["demo-model", f"{tmp_path}/demo-model"]
    prepare_state(made)
    assert (tmp_path / "seal.key").read_text() == key
    assert len(key.strip()) == 64


def test_demo_may_get_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = Mock(return_value=CompletedProcess([], 0))
    monkeypatch.setattr("subprocess.run", start)
    made = plan("--demo-vision", state=tmp_path)
    assert child(made, "worker-1").model == f"{tmp_path}/demo-vision-model"
    prepare_state(made)
    (started,) = start.call_args.args
    assert started[-3:] == ["demo-model", f"{tmp_path}/demo-vision-model", "--vision"]
    with pytest.raises(ConfigError, match="--demo-vision is for the demo model"):
        plan("--demo-vision", "--model", "acme/m")


def test_inspector_follows_the_same_bus() -> None:
    spec = inspector_spec(plan("--inspect", "--nats-user", "tap"), "nats://n:1", 8090)
    assert spec.command[3:] == [
        "inspect",
        "--nats-user=tap",
        "--nats-url=nats://n:1",
        "--model=/state/demo-model",
        "--port=8090",
    ]


def test_inspector_has_the_tokenizer_of_each_model(tmp_path: Path) -> None:
    made = plan(models_file(tmp_path), "--inspect")
    flags = inspector_spec(made, "nats://n:1", 8090).command
    paths = [model.worker.model for model in made.models]
    assert [flag for flag in flags if flag.startswith("--model=")] == [
        f"--model=coder-1={paths[0]}",
        f"--model=acme/small={paths[1]}",
    ]


def test_setting_without_its_package_has_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    plan("--tracing")
    monkeypatch.setattr("importlib.util.find_spec", {"torch": object()}.get)
    assert engine_problem("script") is engine_problem("transformers") is None
    with pytest.raises(ConfigError) as caught:
        plan("--engine", "trtllm", "--model", "m")
    (found,) = caught.value.problems
    needs = "Invalid value for --engine: trtllm needs tensorrt_llm, which is not installed; "
    assert found.startswith(needs)
    assert found.endswith(" -m pip install -e '.[trtllm]'")


def test_missing_stages_are_named() -> None:
    connecting = b'{"ready":false,"bus":false,"stages":{}}'
    assert problem_of(connecting) == "the frontend is connecting to the bus"
    stages = b'{"bus":true,"stages":{"worker":[],"parser":[{}],"preprocessor":[]}}'
    assert problem_of(stages) == "waiting for worker and preprocessor"
    assert problem_of(b"not json") == "not ready yet"
