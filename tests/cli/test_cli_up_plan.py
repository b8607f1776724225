"""The plan of `up` follows from flags, environment and file alone."""

import errno
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import Mock

import pytest

from services.cli.check.model import engine_problem
from services.cli.common import reserve_ports
from services.cli.up.plan import DEMO_MODEL, UpPlan, inspector_spec, make_specs, prepare_state
from services.cli.up.readiness import problem_of
from services.runtime.config.base import Config
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.loader import ConfigError
from services.runtime.config.stages import PreprocessorConfig, WorkerConfig
from tests.cli.up_plans import plan, sources_of

CONFIGS: dict[str, type[Config]] = {
    "frontend": FrontendConfig,
    "preprocessor": PreprocessorConfig,
    "worker": WorkerConfig,
}


def child(made: UpPlan, name: str, env: Mapping[str, str] | None = None) -> Any:
    """The configuration that a child makes of its command line and environment."""
    specs = make_specs(made, "nats://n:1" if made.embedded_nats else None, [81, 82, 83], {})
    (command,) = [spec.command for spec in specs if spec.name == name]
    config = CONFIGS[name.partition("-")[0]]
    return sources_of(command[5:], config, env=env).load(config).config


def test_demo_needs_nothing() -> None:
    made = plan()
    assert (made.demo, made.embedded_nats, made.model) == (True, True, DEMO_MODEL)
    worker, frontend = child(made, "worker-1"), child(made, "frontend-1")
    assert (worker.model, worker.served_model_name) == ("/state/demo-model", DEMO_MODEL)
    assert (worker.engine, worker.log_format) == ("script", "json")
    assert (worker.id, worker.bus.nats_url) == ("worker-1", "nats://n:1")
    assert (frontend.port, frontend.id) == (81, "frontend-1")


MODELS = """
[coder-1]
model = "acme/coder"
aliases = ["coder", "best"]
workers = 2
slots = 3
trust_remote_code = true
template_kwargs = { enable_thinking = false }

["acme/small"]
model = "acme/small-it"
engine = "vllm-server"
engine_url = "http://a:1,http://b:1"
"""


def models_file(directory: Path, text: str = MODELS) -> str:
    file = directory / "models.toml"
    file.write_text(text)
    return f"--models={file}"


def test_each_model_of_a_file_has_processes_and_settings_of_its_own(tmp_path: Path) -> None:
    made = plan(models_file(tmp_path), "--slots=9", "--parsers=2", "--frontends=2")
    assert not made.demo
    assert [model.name for model in made.models] == ["coder-1", "acme/small"]
    specs = make_specs(made, "nats://n:1", [81, 82], {}, range(9000, 9020))
    assert [spec.name for spec in specs] == [
        *("preprocessor-coder_1-1", "preprocessor-acme_small-1"),
        *("worker-coder_1-1", "worker-coder_1-2", "worker-acme_small-1", "worker-acme_small-2"),
        *("frontend-1", "frontend-2"),
        *("parser-coder_1-1", "parser-coder_1-2", "parser-acme_small-1", "parser-acme_small-2"),
    ]
    groups = {spec.name: spec.group for spec in specs}
    assert (groups["worker-coder_1-1"], groups["frontend-1"]) == ("coder_1", "")

    coder = child(made, "worker-coder_1-1")
    assert (coder.model, coder.model_name, coder.slots) == ("acme/coder", "coder-1", 3)
    assert coder.trust_remote_code
    small = [child(made, f"worker-acme_small-{number}") for number in (1, 2)]
    assert [worker.engine_url for worker in small] == ["http://a:1", "http://b:1"]
    assert (small[0].model_name, small[0].slots) == ("acme/small", 9)
    preprocessor = child(made, "preprocessor-coder_1-1")
    assert preprocessor.aliases == ["coder", "best"]
    assert preprocessor.template_kwargs == {"enable_thinking": False}


def test_problems_of_a_file_of_models_are_reported(tmp_path: Path) -> None:
    text = """
[coder]
slotz = 3
"""
    with pytest.raises(ConfigError) as caught:
        plan(models_file(tmp_path, text))
    assert caught.value.problems == [
        "--models [coder]: model is required, a directory or a hub id",
        '--models [coder]: no setting "slotz" of a model; did you mean "slots"?',
    ]
    text = """
[coder]
model = "acme/coder"
slots = "x"

[small]
model = "acme/small"
workerz = 2

[third]
model = "acme/third"
engine = "nope"
"""
    with pytest.raises(ConfigError) as caught:
        plan(models_file(tmp_path, text))
    coder, small, third = caught.value.problems
    assert coder.startswith('Invalid value for --models [coder] slots: "x"')
    assert small.startswith('--models [small]: no setting "workerz"')
    assert third.startswith("Invalid value for --models [third] engine")
    with pytest.raises(ConfigError, match="--models: --model is for one model"):
        plan(models_file(tmp_path), "--model=acme/other")
    for text, problem in (
        ('coder = "acme/coder"', "--models [coder] is not a table of settings"),
        (
            "[small]\nmodel = 'a'\n[\"sm/all\"]\nmodel = 'a'\n[sm_all]\nmodel = 'a'",
            "models have nearly the same name: small, sm/all, sm_all",
        ),
        (
            "[a]\nmodel = 'm'\nserved_model_name = 'x'\n[b]\nmodel = 'm'\nserved_model_name = 'x'",
            "models have nearly the same name: x, x",
        ),
        ("[a]\nmodel = 'm'\nnats_url = 'x'", '--models [a]: no setting "nats_url" of a model'),
        ("[a]\nmodel = 'm'\nslots = 'x'", 'Invalid value for --models [a] slots: "x" is not'),
    ):
        with pytest.raises(ConfigError) as caught:
            plan(models_file(tmp_path, text))
        assert caught.value.problems[0].startswith(problem)


def test_problems_of_all_models_are_reported_at_once(tmp_path: Path) -> None:
    text = """
small = "acme/small"

[coder]
modle = "acme/coder"
slots = "x"

[sql]
model = "/nowhere"
workerz = 2
"""
    with pytest.raises(ConfigError) as caught:
        plan(models_file(tmp_path, text))
    assert caught.value.problems == [
        "--models [small] is not a table of settings",
        "--models [coder]: model is required, a directory or a hub id",
        '--models [coder]: no setting "modle" of a model; did you mean "model"?',
        'Invalid value for --models [coder] slots: "x" is not a whole number',
        '--models [sql]: no setting "workerz" of a model; did you mean "workers"?',
        "Invalid value for --models [sql] model: there is no directory /nowhere",
    ]
    with pytest.raises(ConfigError, match=r"^--models has no table of a model$"):
        plan(models_file(tmp_path, ""))


def test_model_of_a_flag_precedes_the_models_of_a_variable(tmp_path: Path) -> None:
    file = models_file(tmp_path).removeprefix("--models=")
    made = plan("--model=acme/m", env={"TURNWIRE_MODELS": file})
    assert [(model.label, model.name) for model in made.models] == [("", "acme/m")]


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


def test_ports_are_free_and_reserved() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} on 127.0.0.1 is in use; .* with --port"):
            reserve_ports("127.0.0.1", port, 1)
    found = reserve_ports("127.0.0.1", 0, 3)
    assert len(set(found)) == 3
    for port in found:  # others do not get it by chance, and its server does
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        socket.create_server(("127.0.0.1", port)).close()


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


def test_port_of_node_exporter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(*_: object) -> None:
        raise OSError(errno.EADDRINUSE, "in use")

    monkeypatch.setattr("socket.socket.bind", bind)
    with pytest.raises(OSError, match=r"9100 .* is in use .*node_exporter.* with --metrics-port"):
        reserve_ports("127.0.0.1", 9100, 1, flags=("--metrics-host", "--metrics-port"))


def test_missing_stages_are_named() -> None:
    connecting = b'{"ready":false,"bus":false,"stages":{}}'
    assert problem_of(connecting) == "the frontend is connecting to the bus"
    stages = b'{"bus":true,"stages":{"worker":[],"parser":[{}],"preprocessor":[]}}'
    assert problem_of(stages) == "waiting for worker and preprocessor"
    assert problem_of(b"not json") == "not ready yet"
