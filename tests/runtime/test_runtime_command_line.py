"""Flags become configurations, and go on to other processes."""

from typing import Any

import pytest
from cyclopts import Token

from services.runtime.config.base import Config
from services.runtime.config.command_line import forwarded_arguments, run_command
from services.runtime.config.loader import LoadedConfig, Sources
from services.runtime.config.stages import PreprocessorConfig, WorkerConfig


def command_line(config: type[Config], *argv: str) -> LoadedConfig[Any]:
    """The configuration that a command loads."""
    loaded: list[LoadedConfig[Any]] = []

    def command(sources: Sources) -> int:
        loaded.append(sources.load(config))
        return 0

    assert run_command(command, "turnwire", argv, config, env={}) == 0
    return loaded[0]


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--max-model-len", "32k"], "max_model_len", 32_000),
        (["--alias", "a", "--alias", "b,c"], "aliases", ["a", "b", "c"]),
        (["--no-strip-anthropic-preamble"], "strip_anthropic_preamble", False),
        (["--template-kwargs", '{"thinks": false}'], "template_kwargs", {"thinks": False}),
        (["--effort-budgets", "low=9, high=4k"], "effort_budgets", {"low": 9, "high": 4000}),
        (["--chat-template", ""], "chat_template", None),
    ],
)
def test_flags_of_other_servers_are_accepted(argv: list[str], field: str, value: object) -> None:
    loaded = command_line(PreprocessorConfig, "--model", "m", *argv)
    assert getattr(loaded.config, field) == value


def test_wrong_command_lines_end_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, said in (
        (["--slotz", "3"], "Unknown option: --slotz. Did you mean --slots?"),
        (["--slots"], "--slots requires an argument"),
        (["--slots", "some"], 'Invalid value for --slots: "some" is not a whole number'),
        (["stray"], "stray"),
    ):
        with pytest.raises(SystemExit) as caught:
            command_line(WorkerConfig, "--model", "m", *argv)
        assert caught.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line


def test_flags_can_be_passed_to_another_process() -> None:
    flags = {
        "aliases": [Token(keyword="--alias", value="a"), Token(keyword="--alias", value="-b")],
        "strip_anthropic_preamble": [
            Token(keyword="--no-strip-anthropic-preamble", implicit_value=False)
        ],
        "chat_template": [Token(keyword="--chat-template", value="")],
        "model": [Token(keyword="--model", value="m")],
        "port": [Token(keyword="--port", value="1")],
    }
    argv = forwarded_arguments(flags, PreprocessorConfig)
    loaded = command_line(PreprocessorConfig, *argv)
    assert loaded.config == PreprocessorConfig(
        model="m", aliases=["a", "-b"], strip_anthropic_preamble=False
    )
    assert not [a for a in argv if "port" in a]
