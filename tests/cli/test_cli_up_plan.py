"""The plan of `up` follows from flags, environment and file alone; and what the screen shows."""

import errno
import json
import re
import socket
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import Mock

import pytest

from services.cli.check.model import engine_problem
from services.cli.common import reserve_ports
from services.cli.up.command import COMMAND
from services.cli.up.plan import (
    DEMO_MODEL,
    UpPlan,
    inspector_spec,
    make_plan,
    make_specs,
    prepare_state,
)
from services.cli.up.readiness import problem_of
from services.cli.up.screen import Screen, ServedModelNotes, instructions, log_text
from services.runtime.config.base import Config
from services.runtime.config.command_line import run_command
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.loader import ConfigError, Sources
from services.runtime.config.stages import PreprocessorConfig, WorkerConfig


def sources_of(
    argv: Sequence[str], *configs: type[Config], env: Mapping[str, str] | None = None
) -> Sources:
    """What a command with these flags and this environment gets."""
    seen: list[Sources] = []

    def command(sources: Sources) -> int:
        seen.append(sources)
        return 0

    assert run_command(command, "turnwire", argv, *configs, env=env or {}) == 0
    return seen[0]


def plan(*argv: str, env: Mapping[str, str] | None = None, state: Path = Path("/state")) -> UpPlan:
    return make_plan(sources_of([f"--state-dir={state}", *argv], *COMMAND.settings, env=env))


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


def shown(made: UpPlan, model: ServedModelNotes) -> str:
    return instructions(made, ["http://127.0.0.1:81"], model, 3.21, ".venv/bin/turnwire")


def test_instructions_are_shell_lines(tmp_path: Path) -> None:
    lines = shown(plan(), ServedModelNotes(32768)).splitlines()
    for line in (
        "turnwire-demo is served at http://127.0.0.1:81  (ready after 3.2 s)",
        "  export ANTHROPIC_BASE_URL=http://127.0.0.1:81",
        "  export ANTHROPIC_MODEL=turnwire-demo",
        "  export CLAUDE_CODE_MAX_CONTEXT_TOKENS=32768",
        "  export CLAUDE_CODE_MAX_OUTPUT_TOKENS=8192",
        "Settings for another client:  .venv/bin/turnwire connect codex",
        "  curl -N http://127.0.0.1:81/v1/messages \\",
        "See the turns in a browser:  .venv/bin/turnwire inspect",
        "Watch the messages on the bus:  .venv/bin/turnwire tap",
    ):
        assert line in lines
    assert "MAX_OUTPUT_TOKENS" not in shown(plan(), ServedModelNotes(262144))


def test_instructions_have_addresses_for_other_machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys.txt").write_text(f"ann:{'0' * 64}\n")
    assert plan().other_urls(81) == []
    made = plan("--host", "0.0.0.0")
    first, *more = made.other_urls(81)
    assert first == "http://gpu1:81"
    assert all(one.startswith("http://") and one.endswith(":81") for one in more)
    text = instructions(
        made, [made.url(81)], ServedModelNotes(), 3.21, "turnwire", other_urls=["http://gpu1:81"]
    )
    assert "is served at http://127.0.0.1:81 " in text
    assert "From other machines:  http://gpu1:81\n" in text
    assert "Everyone who reaches this port may use it: --api-keys-file names the keys." in text
    made = plan("--host", "0.0.0.0", "--api-keys-file", "keys.txt")
    text = instructions(made, ["u"], ServedModelNotes(), 1, "turnwire", other_urls=["http://gpu1"])
    assert "Everyone" not in text


def test_instructions_with_keys_have_the_window_or_where_it_is_listed(tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text(f"ann:{'0' * 64}\n")
    made = plan("--api-keys-file", str(keys))
    text = shown(made, ServedModelNotes(32768))
    assert 'ANTHROPIC_AUTH_TOKEN="$TURNWIRE_API_KEY"' in text
    assert "CLAUDE_CODE_MAX_CONTEXT_TOKENS=32768" in text
    assert "the model's is among" not in text
    assert "the model's is among" in shown(made, ServedModelNotes())


def test_a_server_without_keys_that_others_reach_is_noted(tmp_path: Path) -> None:
    note, notes = "Everyone who reaches this port may use it", ServedModelNotes()
    assert note not in shown(plan(), notes)
    assert note not in shown(plan("--host=localhost"), notes)
    assert note in shown(plan("--host=0.0.0.0"), notes)
    assert note in shown(plan("--host=10.0.0.1"), notes)
    keys = tmp_path / "keys.txt"
    keys.write_text(f"ann:{'0' * 64}\n")
    assert note not in shown(plan("--host=0.0.0.0", f"--api-keys-file={keys}"), notes)


def test_port_of_node_exporter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(*_: object) -> None:
        raise OSError(errno.EADDRINUSE, "in use")

    monkeypatch.setattr("socket.socket.bind", bind)
    with pytest.raises(OSError, match=r"9100 .* is in use .*node_exporter.* with --metrics-port"):
        reserve_ports("127.0.0.1", 9100, 1, flags=("--metrics-host", "--metrics-port"))


def test_a_model_without_its_weights_is_named() -> None:
    notes = ServedModelNotes(32768)
    assert "No weights are loaded: the engine is script" in shown(plan("--model", "m"), notes)
    assert "No weights" not in shown(plan(), notes), "that is the demo"
    real = plan("--model", "m", "--engine", "transformers")
    assert "No weights" not in shown(real, notes)


def test_clients_that_cannot_work_are_not_recommended() -> None:
    for model, warning in (
        (ServedModelNotes(4096), "Its window of 4,096 tokens is too small for coding agents"),
        (ServedModelNotes(262144, tools=False), "requests with tools get status 400"),
    ):
        text = shown(plan(), model)
        assert warning in text
        assert [word for word in ("export", "connect", "Point Claude Code") if word in text] == []
        assert "is served at http://127.0.0.1:81" in text


def test_missing_stages_are_named() -> None:
    connecting = b'{"ready":false,"bus":false,"stages":{}}'
    assert problem_of(connecting) == "the frontend is connecting to the bus"
    stages = b'{"bus":true,"stages":{"worker":[],"parser":[{}],"preprocessor":[]}}'
    assert problem_of(stages) == "waiting for worker and preprocessor"
    assert problem_of(b"not json") == "not ready yet"


def test_request_fits_a_terminal() -> None:
    fields = {
        "time": "2026-11-29T17:09:27.272622Z",
        "level": "info",
        "event": "request",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "outcome": "stop",
        "request": "req_5a3a7189b08ea00cbf76b612",
        "tenant": None,
        "seconds": 1.399,
        "prompt_tokens": 152021,
        "ttft": 0.047,
        "cached_tokens": 149000,
        "output_tokens": 1078,
    }
    line = log_text("preprocessor-1", json.dumps(fields)).plain
    assert re.match(r"\d\d:\d\d:\d\d preprocessor-1 ", line)
    assert line[24:] == (
        "POST /v1/chat/completions 200  1.40 s, first 0.05 s  152021+1078 tokens, 98% cached  "
        "5a3a7189"
    )
    longer = fields | {"path": "/v1/responses/" + "x" * 300, "outcome": "hangup", "status": None}
    line = log_text("frontend-1", json.dumps(longer)).plain
    assert len(line) <= 120
    assert " hangup  1.40 s" in line
    hangup = fields | {"outcome": "hangup", "status": None}
    del hangup["cached_tokens"]
    assert log_text("frontend-1", json.dumps(hangup)).plain.endswith("152021+1078 tokens  5a3a7189")
    del hangup["ttft"]
    line = log_text("frontend-1", json.dumps(hangup)).plain
    assert line.endswith(" hangup  1.40 s  152021+1078 tokens  5a3a7189")
    unknown = fields | {"status": 404, "requested_model": "gpt-4"}
    del unknown["output_tokens"]
    line = log_text("frontend-1", json.dumps(unknown)).plain
    assert " 404  1.40 s, no model gpt-4  5a3a7189" in line
    unlike = log_text("worker-1", '{"event":"request","path":7,"evidence":["long"]}').plain
    assert unlike[24:].split() == ["request", "path=7"]


def test_screen_hides_routine_lines_of_nats(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen("info")
    screen.relay("nats", "[7] [INF] Starting nats-server")
    screen.relay("nats", "[7] [ERR] Cannot bind")
    screen.relay("worker-1", "a library's words")
    screen.relay("inspector", "turnwire inspect: http://127.0.0.1:8900/")
    screen.relay("worker-1", '{"event":"worker.loaded"}')
    screen.report("hello")
    screen.report("the disk is full", "error")
    with screen.progress("starting") as progress:
        for reason in ("waiting for worker", "waiting for worker", "not ready yet"):
            progress.update(reason)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert lines.pop(3) == {"event": "worker.loaded"}
    assert [(line["process"], line["level"], line["text"].split(" (")[0]) for line in lines] == [
        ("nats", "warning", "[7] [ERR] Cannot bind"),
        ("worker-1", "warning", "a library's words"),
        ("inspector", "info", "turnwire inspect: http://127.0.0.1:8900/"),
        ("up", "info", "hello"),
        ("up", "error", "the disk is full"),
        ("up", "info", "starting: waiting for worker"),
        ("up", "info", "starting: not ready yet"),
    ]
    assert all(line["time"].endswith("Z") for line in lines)
    Screen("debug").relay("nats", "[7] [INF] Starting nats-server")
    assert "Starting nats-server" in capsys.readouterr().err
