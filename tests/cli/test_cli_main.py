"""The list of commands, wrong usage, failures of services, and the small commands."""

import asyncio
import json
import shutil
import sys
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from prometheus_client import CollectorRegistry

from schemas.errors import Unavailable
from services.cli.main import main
from services.cli.registry import BUILT_IN
from services.cli.serve import serve_stage
from services.cli.up.command import COMMAND as UP
from services.runtime.config.command_line import FAILURE, USAGE
from services.runtime.config.loader import ConfigError
from services.runtime.config.options import options
from services.runtime.config.tables import STAGES
from services.runtime.health import HealthServer
from services.worker.engines.registry import BUILT_IN as ENGINES
from tests.kit.every import for_each


def status_of(argv: list[str]) -> int:
    try:
        return main(argv)
    except SystemExit as end:
        return int(str(end.code))


PAGE_LINES = 62


@for_each([*BUILT_IN, *(f"serve {stage}" for stage in STAGES)])
def test_every_command_has_help_of_a_page(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name, _, stage = command.partition(" ")
    # The process of a worker ends with its command.
    assert (serve_stage(stage, ["--help"]) if stage else status_of([name, "--help"])) == 0
    shown = capsys.readouterr().out
    assert f"turnwire {command}" in shown
    assert len(shown.splitlines()) <= PAGE_LINES, command
    assert "Args:" not in shown, command


def test_help_of_up_is_short_or_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def help_of(*topic: str) -> str:
        assert main(["up", "--help", *topic]) == 0
        return capsys.readouterr().out

    monkeypatch.setenv("COLUMNS", "100")
    short = help_of()
    flags = [f"--{name.replace('_', '-')} " for name in UP.essential]
    assert [flag for flag in flags if flag not in short] == []
    assert [name for name in ENGINES if name not in short] == []
    assert "--http-port" not in short, "other names are in the whole help"
    monkeypatch.setenv("COLUMNS", "300")
    every = help_of("all")
    settings = [option for config in UP.settings for option in options(config)]
    missing = {option.field_info.name for option in settings if option.name not in every}
    assert missing - {*UP.without} == set()
    assert status_of(["up", "--help", "wroker"]) == 2
    unknown = 'turnwire up: --help knows no group wroker; did you mean "worker"?\n'
    assert capsys.readouterr().err == unknown


def test_overview_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    listed = [part for command, (_, text) in BUILT_IN.items() for part in (command, text)]
    assert [part for part in listed if part not in shown] == []
    assert main([]) == 2
    assert capsys.readouterr() == ("", shown)


@pytest.mark.parametrize(
    ("status", "argv", "message"),
    [
        (2, ["serv"], 'no command serv; did you mean "serve"?'),
        (2, ["config", "nobody"], 'Invalid value "nobody" for STAGE. Choose from: "frontend"'),
        (2, ["up", "worker", "parser"], "turnwire up: unexpected argument: worker parser\n"),
        (2, ["replay", "f", "--api", "x"], 'Invalid value "x" for --api. Choose from: "messages"'),
        (2, ["key", "my laptop"], "a name has letters, digits and . _ @ - only, not 'my laptop'"),
        (2, ["tap", "tw.v2.>", "a b"], "turnwire tap: not a subject of NATS: 'a b'\n"),
        (2, ["connect", "claude", "--port", "3"], "turnwire connect: Unknown option: --port.\n"),
        (2, ["parse", "--family", "nope"], "no parser is called 'nope'; did you mean none?\n"),
        (2, ["parse", "--tools", f"{__file__}x"], f'yx"; did you mean "{__file__}"?\n'),
        (2, ["parse"], "turnwire parse: pass either --family or --response-template\n"),
        (2, ["inspect", sys.executable], "is not a text file: "),
        (2, ["serve", "parser", "--model", "/nowhere"], "there is no directory /nowhere"),
        (2, ["trajectories", __file__], ":1: not a line of `turnwire tap --json`: "),
        (1, ["connect", "claude", "--url", "http://[::1"], "http://[::1 is not an http address"),
        (1, ["catalog", "codex", "--model-dir", "/nowhere"], "there is no directory /nowhere"),
    ],
)
def test_wrong_usage_is_one_line(
    status: int, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(argv) == status
    assert message in capsys.readouterr().err


def test_config_shows_every_value_with_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.toml").write_text("log_level = 'debug'\n[bus]\nbeat_interval_s = 1.5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TURNWIRE_CONFIG", "t.toml")
    monkeypatch.setenv("TURNWIRE_WORKER_SLOTS", "4")
    assert main(["config", "--json", "--http-port", "9000"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {"frontend", "preprocessor", "worker", "parser", "up"}
    assert shown["frontend"]["port"] == {"value": 9000, "origin": "--http-port"}
    assert shown["worker"]["slots"] == {"value": 4, "origin": "TURNWIRE_WORKER_SLOTS"}
    assert shown["parser"]["log_level"] == {"value": "debug", "origin": "t.toml log_level"}
    assert main(["config", "frontend"]) == 0
    table = capsys.readouterr().out
    assert "accept_timeout_s" in table
    assert "t.toml [bus] beat_interval_s" in table
    assert "slots" not in table


async def test_health_checks_a_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reasons: list[str | None] = [None, "draining"]
    server = HealthServer(CollectorRegistry(), lambda: reasons.pop(0))
    monkeypatch.setenv("TURNWIRE_MODEL", "m")
    monkeypatch.setenv("TURNWIRE_METRICS_HOST", "0.0.0.0")
    monkeypatch.setenv("TURNWIRE_METRICS_PORT", str(await server.start("127.0.0.1", 0)))
    assert await asyncio.to_thread(main, ["health", "parser"]) == 0
    assert await asyncio.to_thread(main, ["health", "parser", "--ready"]) == 0
    assert await asyncio.to_thread(main, ["health", "parser", "--ready"]) == 1
    assert "503" in capsys.readouterr().err
    await server.stop()
    assert await asyncio.to_thread(main, ["health", "parser"]) == 1


def test_failure_of_a_service_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service = AsyncMock(side_effect=Unavailable("no NATS server at nats://x"))
    monkeypatch.setattr("services.parser.service.run", service)
    assert serve_stage("parser", ["--model", "m"]) == FAILURE
    assert capsys.readouterr().err == "turnwire serve parser: no NATS server at nats://x\n"
    service.side_effect = KeyError("a bug")
    assert serve_stage("parser", ["--model", "m"]) == FAILURE
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["stage"]) == ("process.failed", "parser")
    assert "KeyError: 'a bug'" in line["exception"]
    service.side_effect = ConfigError(["--model: no tokenizer in m", "--seal-key-file: empty"])
    with pytest.raises(SystemExit) as ended:
        serve_stage("parser", ["--model", "m"])
    assert ended.value.code == USAGE
    (_, line) = capsys.readouterr().err.splitlines()
    assert line == "turnwire serve parser: --seal-key-file: empty"


def test_model_is_checked(
    demo_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(path: Path) -> str:
        assert status_of(["check", "--model", str(path)]) == 2
        return capsys.readouterr().err.removeprefix("turnwire check: Invalid value for --model: ")

    assert main(["check", "--model", str(demo_dir), "--served-model-name", "acme/coder"]) == 0
    assert capsys.readouterr().out == "acme/coder: qwen3_coder, 262,144 tokens\n"
    assert refused(tmp_path / "nowhere") == f"there is no directory {tmp_path / 'nowhere'}\n"
    model = Path(shutil.copytree(demo_dir, tmp_path / "model"))
    (model / "tokenizer.json").write_bytes(b"{}")
    assert main(["check", "--model", str(model)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("turnwire check: model: ")
    (model / "config.json").unlink()
    assert refused(model) == f"{model} has no config.json\n"


def test_models_of_a_file_are_checked(
    demo_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "models.toml"
    broken = Path(shutil.copytree(demo_dir, tmp_path / "broken"))
    tables = f"[coder]\nmodel = '{demo_dir}'\n[sql]\nmodel = '{broken}'\n"
    file.write_text(tables)
    assert main(["check", f"--models={file}", "--workers=2"]) == 0
    of_coder, of_sql = capsys.readouterr().out.splitlines()
    assert of_coder == "coder: qwen3_coder, 262,144 tokens"
    assert of_sql.startswith("sql: ")

    (broken / "tokenizer.json").write_bytes(b"{}")
    assert main(["check", f"--models={file}"]) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [of_coder]
    assert printed.err.startswith("turnwire check: model sql: ")

    file.write_text(tables + "workerz = 2\n[small]\nmodle = 'm'\n")
    assert status_of(["check", f"--models={file}"]) == 2
    problems = capsys.readouterr().err.splitlines()
    assert [problem.partition(":")[2].split()[1] for problem in problems] == [
        *("[sql]:", "[small]:", "[small]:")
    ]


def test_model_missing_on_the_hub_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("services.cli.check.model.find_file", lambda *_: None)
    assert status_of(["check", "--model", "org/nothing"]) == 2
    assert "the hub has no such model or is out of reach" in capsys.readouterr().err
