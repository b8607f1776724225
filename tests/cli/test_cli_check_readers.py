"""A setting that cannot work ends a command before any process starts: in one line with the flag,
the value, and the nearest one that would do."""

from pathlib import Path

import pytest

from services.cli.main import main
from services.cli.up.plan import make_plan
from services.runtime.config.loader import ConfigError, Sources
from tests.cli.up_plans import problems_of_up, states
from tests.kit.every import Cases

WRONG = {
    "nats_url": ("http://127.0.0.1:4222", "nats://:4222", "notaurl", "nats://a b"),
    "model": ("/nowhere/model", "./nowhere", ""),
    "engine": ("nothing", ""),
    "engine_url": ("127.0.0.1:8000", "grpc://a:1", "http://a:1"),
    "family": ("nothing at all", "hermes+nothing", ""),
    "tool_call_parser": ("hermse",),
    "reasoning_parser": ("deepseek_rr",),
    "device": ("gpu", "cuda:x", ":1", ""),
    "dtype": ("float61", "int", ""),
    "otlp_endpoint": ("127.0.0.1:4318", "grpc://a", "http://", "http://a:b"),
    "web_provider": ("a.example", "ftp://a.example"),
    "cors_origins": ("a.example", "https://a.example/path"),
    "allowed_hosts": ("https://a.example", "a b"),
    "image_url_hosts": ("https://a.example",),
    "state_dir": ("/dev/null/x",),
    "ready_file": ("/dev/null/x", "/dev"),
}


def test_wrong_value_is_one_line(cases: Cases) -> None:
    for name, values in WRONG.items():
        for value in values:
            flag = f"--{name.replace('_', '-')}"
            model = [] if name == "model" else ["--model=acme/m"]
            with cases.case(flag=flag, value=value):
                problems = problems_of_up([f"{flag}={value}", *model])
                assert any(states(problem, flag, value) for problem in problems), problems


@pytest.mark.parametrize(
    ("flag", "content", "reason"),
    [
        ("--seal-key-file", b" \n", "is empty"),
        ("--api-keys-file", b"my key", "not a key"),
        ("--tls-cert-file", b"nothing", "has no certificate"),
        ("--chat-template", b"{% if", "not valid Jinja: line 1"),
        ("--response-template", b"{", "not JSON"),
        ("--engine-args", b"{", "flow node"),
        ("--engine-api-key-file", b"two\nlines\n", "not one line"),
        ("--engine-api-key-file", b"a\0b", "not one line"),
        ("--web-provider-key-file", b"a\rb", "not one line"),
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


OF_MODEL = "Invalid value for --model:"
SAME_PORT = "Invalid value for --metrics-port: 9100 is the frontend's port"


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--effort-budgets=lw=5"], 'did you mean "low"?'),
        (["--engine=vlm"], 'did you mean "vllm"?'),
        (
            ["--model=a/m", "--engine-url=http://a", "--engine=vllm_server"],
            'did you mean "vllm-server"?',
        ),
        (["--allowed-hosts=https://a.example:8000/"], 'did you mean "a.example"?'),
        (["--family=qwen3_codr"], "did you mean qwen3_coder"),
        (["--port=9100", "--metrics-port=9100"], SAME_PORT),
        (["--nats-url=http://me:secret@bus"], '"http://***@bus"'),
        (["--seal-key-file={here}/seal.kye"], '; did you mean "{here}/seal.key"?'),
        (["--seal-key-file={here}/seldom.txt"], 'there is no file "{here}/seldom.txt"'),
        (
            ["--api-keys-file={here}/people.txt"],
            'no file "{here}/people.txt"; turnwire key NAME --file {here}/people.txt makes it',
        ),
        (["--script-dir={here}/seal.key"], 'there is no directory "{here}/seal.key"'),
        (["--model={here}/model"], f"{OF_MODEL} {{here}}/model has no config.json"),
        (["--engine=transformers"], "--engine transformers needs a --model"),
    ],
)
def test_problem_of_up_is_one_line(argv: list[str], text: str, tmp_path: Path) -> None:
    (tmp_path / "seal.key").write_text("secret")
    (tmp_path / "sealed.out").write_text("")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    (problem,) = problems_of_up([flag.replace("{here}", str(tmp_path)) for flag in argv])
    assert text.replace("{here}", str(tmp_path)) in problem
    assert argv[-1].partition("=")[0] in problem
    assert ("did you mean" in problem.lower()) == ("did you mean" in text.lower())
    assert "secret" not in problem


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


def test_service_does_not_start_with_a_wrong_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "parser", "--model", "acme/m", "--seal-key-file=/nowhere/key"])
    assert ended.value.code == 2
    problem = 'Invalid value for --seal-key-file: there is no file "/nowhere/key"'
    assert capsys.readouterr().err == f"turnwire serve parser: {problem}\n"
