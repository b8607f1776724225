"""A setting that cannot work ends a command before any process starts: in one line with the flag,
the value, and the nearest one that would do."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, cast, get_args, get_origin

import pytest
from cyclopts import Argument, Token
from cyclopts.validators import Number

from services.cli.main import main
from services.cli.up.check import check_settings, place_problem, require_model
from services.cli.up.command import COMMAND
from services.cli.up.plan import make_plan
from services.runtime.config import STAGES, UpConfig
from services.runtime.config.loader import ConfigError, Sources
from services.runtime.config.options import options
from tests.cli.running import install

PLACES = ("chat_template", "response_template", "script_dir")
FREE = {"id", "nats_user", "served_model_name", "default_model", "aliases"}
FREE |= {"web_search_tool", "web_fetch_tool"}
FREE |= {"host", "metrics_host"}  # listening tries them
"""Settings without wrong values."""
IN_PROC = ("/proc/x",) if Path("/proc").is_dir() else ()
"""Where the system administrator, too, can create nothing, whatever the rights."""
WRONG = {
    "nats_url": ("http://127.0.0.1:4222", "nats://:4222", "nats://a:b", "tls://"),
    "model": ("/nowhere/model", "./nowhere", ""),
    "engine": ("scirpt", "vlm", "nothing", ""),
    "family": ("qwen3_codr", "nothing at all", "hermes+nothing", ""),
    "tool_call_parser": ("hermse", "?"),
    "reasoning_parser": ("deepseek_rr", "?"),
    "device": ("cuad", "gpu", "cuda:x", ":1", ""),
    "dtype": ("float61", "int", ""),
    "otlp_endpoint": ("127.0.0.1:4318", "grpc://a", "http://", "http://a:b"),
    "web_provider": ("a.example", "ftp://a.example", "http://"),
    "cors_origins": ("a.example", "https://a.example/", "https://a.example/path"),
    "allowed_hosts": ("https://a.example", "a b"),
    "image_url_hosts": ("https://a.example", "a b"),
    "state_dir": ("/dev/null/x", *IN_PROC),
    "ready_file": ("/dev/null/x", "/dev", *IN_PROC),
}
NEEDS = {
    "tls_key_file": ["--tls-cert-file"],
    "tls_client_ca_file": ["--tls-cert-file"],
    "nats_key_file": ["--nats-cert-file"],
}


def wrong_values(option: Argument, chance: random.Random, folder: Path) -> Iterator[str]:
    """Values that an option cannot have; files get names near to existing ones."""
    name, hint = option.field_info.name, option.hint
    kinds = (
        [kind for kind in (*get_args(hint), hint) if kind is not type(None)]
        if get_origin(hint) is not dict
        else []
    )
    if name in WRONG:
        yield from WRONG[name]
    elif name.endswith("_file") or name in PLACES:
        near = folder / f"{name}.{chance.randrange(1000)}"
        near.touch()
        yield str(near)[:-1] + "x"
        yield str(folder / "no folder" / "file")
        yield str(near) if name == "script_dir" else str(folder)
    elif get_origin(hint) is Literal:
        choice = chance.choice(get_args(hint))
        yield choice + "x"
        yield choice[1:] or "?"
    elif get_origin(hint) is dict or any(get_origin(kind) is dict for kind in kinds):
        yield from ("{", "[1]", "/nowhere.json", "{'a': 1}")
    elif bool in kinds:
        yield "maybe"
    elif int in kinds or float in kinds:
        yield from ("x", "1.5.5", *(["1.5", "3 apples"] if int in kinds else ["inf", "nan"]))
        for bound in cast("tuple[object, ...]", option.parameter.validator or ()):
            if isinstance(bound, Number):
                yield from (str(low - 1) for low in (bound.gte, bound.gt) if low is not None)
                yield from (str(high + 1) for high in (bound.lte, bound.lt) if high is not None)
    else:
        assert name in FREE, f"{name} has no wrong values: check it, or name it in FREE"


def tokens_of(flags: list[str]) -> Sources:
    """The sources that these flags, each `--name=value`, make. Parsing a command line takes fifty
    times as long."""
    tokens: dict[str, list[Token]] = {}
    for flag in flags:
        name, _, value = flag.partition("=")
        tokens.setdefault(name.removeprefix("--").replace("-", "_"), []).append(
            Token(keyword=name, value=value)
        )
    return Sources(tokens)


def problems_of(stage: str, flags: list[str]) -> list[str]:
    """The problems that `turnwire serve STAGE` prints."""
    try:
        check_settings([tokens_of(flags).load(STAGES[stage])])
    except ConfigError as error:
        return error.problems
    return []


def problems_of_up(flags: list[str]) -> list[str]:
    """The problems that `turnwire up` prints before it starts anything."""
    try:
        make_plan(tokens_of(flags))
    except ConfigError as error:
        return error.problems
    return []


def states(problem: str, flag: str, value: str) -> bool:
    """Whether the line has the flag and the value."""
    return (
        "\n" not in problem
        and flag in problem
        and (value in problem or re.sub(r"\.0$", "", value) in problem)
    )


@pytest.mark.parametrize("stage", STAGES)
def test_wrong_value_of_any_flag_is_one_line(stage: str, tmp_path: Path) -> None:
    chance = random.Random(stage)
    tried = 0
    missed = []
    for option in options(STAGES[stage]):
        name = option.field_info.name
        for value in wrong_values(option, chance, tmp_path):
            flags = [f"{option.name}={value}"]
            flags += [f"{flag}={value}" for flag in NEEDS.get(name, ())]
            if stage != "frontend" and name != "model":
                flags.append("--model=acme/m")
            shown = {stage: problems_of(stage, flags)}
            if name not in COMMAND.without:
                shown["up"] = problems_of_up(flags)
            for command, problems in shown.items():
                if not any(states(problem, option.name, value) for problem in problems):
                    missed.append((command, flags, problems))
            tried += 1
    assert missed == []
    assert tried > 40


def test_wrong_value_of_a_flag_of_up_is_one_line(tmp_path: Path) -> None:
    tried = [option for option in options(UpConfig) if option.field_info.name not in FREE]
    assert tried
    missed = []
    for option in tried:
        values = [*wrong_values(option, random.Random(1), tmp_path)]
        assert values
        for value in values:
            problems = problems_of_up([f"{option.name}={value}"])
            if [states(problem, option.name, value) for problem in problems] != [True]:
                missed.append((option.name, value, problems))
    assert missed == []


@pytest.mark.parametrize(
    ("flag", "content", "reason"),
    [
        ("--seal-key-file", b" \n", "is empty"),
        ("--api-keys-file", b"my key", "not a key"),
        ("--api-keys-file", b"# none", "holds no keys"),
        ("--api-keys-file", b"\xff", "decode"),
        ("--codex-models-file", b"nothing", "malformed"),
        ("--tls-cert-file", b"nothing", "has no certificate"),
        ("--nats-ca-file", b"nothing", "no certificate"),
        ("--nats-cert-file", b"nothing", "has no certificate"),
        ("--nats-creds-file", b"nothing", "not a NATS credentials file"),
        ("--nats-password-file", b"", "is empty"),
        ("--heartbeat-key-file", b"", "is empty"),
        ("--web-provider-key-file", b"", "is empty"),
        ("--chat-template", b"{% if", "not valid Jinja: line 1"),
        ("--response-template", b"{", "not JSON"),
        ("--engine-args", b"{", "flow node"),
    ],
)
def test_file_with_wrong_content_is_one_line(
    flag: str, content: bytes, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "file.json"
    file.write_bytes(content)
    (problem,) = problems_of_up([f"{flag}={file}", "--model=acme/m"])
    assert states(problem, flag, str(file)), problem
    assert reason in problem


EMPTY_LEVEL = 'Invalid value for --effort-budgets: "" is not a level of effort; there are'
NO_SUCH_KEY = 'Invalid value for --seal-key-file: there is no file "{here}/seal.toml"'
OF_MODEL = "Invalid value for --model:"
SAME_PORT = "Invalid value for --metrics-port: 9100 is the frontend's port"


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--effort-budgets==5"], EMPTY_LEVEL),
        (["--effort-budgets=lw=5"], 'did you mean "low"?'),
        (["--engine=vlm"], 'did you mean "vllm"?'),
        (["--device=cuad:1"], 'did you mean "cuda"?'),
        (["--cors-origins=https://a.example/x"], 'did you mean "https://a.example"?'),
        (["--allowed-hosts=https://a.example:8000/"], 'did you mean "a.example"?'),
        (["--log-level=wrning"], 'Did you mean "warning"?'),
        (["--family=qwen3_codr"], "did you mean qwen3_coder"),
        (["--port=9100", "--metrics-port=9100"], SAME_PORT),
        (["--nats-url=http://me:secret@bus"], '"http://***@bus"'),
        # More processes than any machine can run.
        (["--frontends=999999999"], "999999999"),
        (["--preprocessors=999999999"], "999999999"),
        (["--workers=999999999"], "999999999"),
        (["--parsers=999999999"], "999999999"),
        # Files near {here}/seal.key, and the folder of a model.
        (["--seal-key-file={here}/seal.kye"], '; did you mean "{here}/seal.key"?'),
        (["--seal-key-file={here}/seal.toml"], NO_SUCH_KEY),
        (["--script-dir={here}/seal.key"], 'there is no directory "{here}/seal.key"'),
        (["--model={here}/modl"], '; did you mean "{here}/model"?'),
        (["--model={here}/model"], f"{OF_MODEL} {{here}}/model has no config.json"),
        (["--model={here}/untold"], f"{OF_MODEL} {{here}}/untold has no tokenizer.json"),
        (["--model={here}/m.gguf"], f"{OF_MODEL} {{here}}/m.gguf is a file; a model is a dir"),
        (["--model=./nowhere"], f"{OF_MODEL} there is no directory ./nowhere"),
        (["--model=a/b/c"], f"{OF_MODEL} there is no directory a/b/c"),
        (["--engine=transformers"], "--engine transformers needs a --model"),
        (["--effort-budgets=low=0"], "--effort-budgets: low must be 1 to 2147483647, not 0"),
    ],
)
def test_problem_of_up_is_one_line(argv: list[str], text: str, tmp_path: Path) -> None:
    (tmp_path / "seal.key").write_text("secret")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    (tmp_path / "untold").mkdir()
    (tmp_path / "untold" / "config.json").write_text("{}")
    (tmp_path / "m.gguf").touch()
    (problem,) = problems_of_up([flag.replace("{here}", str(tmp_path)) for flag in argv])
    assert text.replace("{here}", str(tmp_path)) in problem
    assert argv[-1].partition("=")[0] in problem
    assert ("did you mean" in problem.lower()) == ("did you mean" in text.lower())
    assert "secret" not in problem


def test_settings_that_can_work_have_no_problem(tmp_path: Path) -> None:
    assert problems_of_up(["--port=0", "--metrics-port=0", f"--state-dir={tmp_path}"]) == []
    for flag in ("--frontends", "--preprocessors", "--workers", "--parsers"):
        assert problems_of_up([f"{flag}=1000"]) == []
    assert place_problem(tmp_path / "a" / "b", is_file=False) is None
    assert place_problem(tmp_path / "a" / "ready.json", is_file=True) is None
    assert "name too long" in str(place_problem(tmp_path / ("a" * 300), is_file=False))


def test_engine_of_another_package_has_devices_and_types_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "turnwire.engines", "mine = added:Engine")
    monkeypatch.syspath_prepend(tmp_path)
    flags = ["--model=acme/m", "--device=tpu:1", "--dtype=int4"]
    assert problems_of("worker", ["--engine=mine", *flags]) == []
    assert len(problems_of("worker", ["--engine=script", *flags])) == 2


def test_path_in_the_home_folder_is_read_as_the_stage_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "form.json").write_text('{"response_template": {"fields": {}}}')
    problems = problems_of("preprocessor", ["--model=acme/m", "--response-template=~/form.json"])
    assert not [problem for problem in problems if "there is no file" in problem]
    (problem,) = problems_of("preprocessor", ["--model=acme/m", "--seal-key-file=~/form.jsn"])
    assert problem.endswith(f'there is no file "~/form.jsn"; did you mean "{tmp_path}/form.json"?')


def test_variable_and_place_in_the_file_are_named(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[parser]\nseal_key_file = '/nowhere/a'\n")
    env = {"TURNWIRE_PREPROCESSOR_SEAL_KEY_FILE": "/nowhere/b"}
    with pytest.raises(ConfigError) as caught:
        make_plan(Sources({}, env, str(file)))
    assert caught.value.problems == [
        'Invalid value for TURNWIRE_PREPROCESSOR_SEAL_KEY_FILE: there is no file "/nowhere/b"',
        f'Invalid value for {file} [parser] seal_key_file: there is no file "/nowhere/a"',
    ]
    with pytest.raises(ConfigError) as caught:
        make_plan(Sources({}, {"TURNWIRE_STATE_DIR": "/dev/null/x"}))
    wanted = 'Invalid value for TURNWIRE_STATE_DIR: "/dev/null/x"'
    assert caught.value.problems[0].startswith(wanted)
    with pytest.raises(ConfigError) as caught:
        make_plan(Sources({}, {}, str(tmp_path / "settings.tml")))
    (problem,) = caught.value.problems
    assert problem.endswith(f'did you mean "{file}"?')


@pytest.mark.parametrize(
    ("command", "flag", "hint"),
    [
        ("serve parser", "--seal-key-file=/nowhere/key", 'there is no file "/nowhere/key"'),
        ("up", "--workers=x", '"x"'),
        ("up", "--tracing=maybe", '"maybe"'),
        ("up", "--port=99999", '"99999"'),
        ("up", "--seal-key-file=/nowhere", '"/nowhere"'),
        ("up", "--prot=1", "Did you mean --port"),
    ],
)
def test_command_does_not_start_with_a_wrong_setting(
    command: str, flag: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", "acme/m"] if command == "serve parser" else []
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), *model, flag])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"turnwire {command}: ")
    assert flag.partition("=")[0] in line
    assert hint in line


@pytest.mark.parametrize(
    ("script", "text"), [("kill -9 $$", "killed by SIGKILL"), ("exit 3", "status 3")]
)
def test_check_that_ends_without_a_reason_is_reported(
    script: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(Exception, match=f"the check of the model ended without a result: {text}"):
        require_model([])
