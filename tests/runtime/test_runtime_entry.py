"""A service's exit status and what it says on its way out."""

import asyncio

import pytest

from schemas.errors import Unavailable
from services.runtime import entry
from services.runtime.config import ParserConfig
from services.runtime.config.command_line import CLEAN, FAILURE, USAGE
from services.runtime.config.loader import ConfigError


def test_a_service_that_ends_by_itself_is_clean() -> None:
    seen: list[ParserConfig] = []

    async def run(config: ParserConfig) -> None:
        await asyncio.sleep(0)
        seen.append(config)

    assert entry.main("parser", ParserConfig, lambda: run, ["--model", "m"]) == CLEAN
    assert seen == [ParserConfig(model="m")]


@pytest.mark.parametrize("error", [Unavailable("no NATS server at nats://x"), OSError("port 1 is taken")])
def test_a_failure_is_one_line(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    async def run(_config: ParserConfig) -> None:
        raise error

    assert entry.main("parser", ParserConfig, lambda: run, ["--model", "m"]) == FAILURE
    assert capsys.readouterr().err == f"turnwire serve parser: {error}\n"


def test_our_own_mistakes_keep_their_traceback() -> None:
    async def run(_config: ParserConfig) -> None:
        raise KeyError("what")

    with pytest.raises(KeyError):
        entry.main("parser", ParserConfig, lambda: run, ["--model", "m"])


def test_configuration_errors_of_the_service_itself_have_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    async def run(_config: ParserConfig) -> None:
        raise ConfigError(["--model: no tokenizer in m", "--seal-key-file: empty"])

    with pytest.raises(SystemExit) as caught:
        entry.main("parser", ParserConfig, lambda: run, ["--model", "m"])
    assert caught.value.code == USAGE
    assert capsys.readouterr().err.splitlines()[1] == "turnwire serve parser: --seal-key-file: empty"


def test_wrong_flags_have_status_2() -> None:
    async def run(_config: ParserConfig) -> None:
        raise AssertionError("not reached")

    with pytest.raises(SystemExit) as caught:
        entry.main("parser", ParserConfig, lambda: run, [])
    assert caught.value.code == USAGE
