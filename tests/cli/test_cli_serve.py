"""A service's exit status and what it says on its way out."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import pytest

from schemas.errors import Unavailable
from services.cli.serve import serve_stage
from services.runtime.config import ParserConfig
from services.runtime.config.command_line import FAILURE, USAGE
from services.runtime.config.loader import ConfigError

Run: TypeAlias = Callable[[ParserConfig], Coroutine[Any, Any, None]]
Main: TypeAlias = Callable[..., int]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Main:
    """Runs `serve_stage` for a parser with this service."""

    def run_main(run: Run, *argv: str) -> int:
        monkeypatch.setattr("services.parser.service.run", run)
        return serve_stage("parser", argv)

    return run_main


def test_a_failure_is_one_line(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    async def run(_config: ParserConfig) -> None:
        raise Unavailable("no NATS server at nats://x")

    assert main(run, "--model", "m") == FAILURE
    assert capsys.readouterr().err == "turnwire serve parser: no NATS server at nats://x\n"


def test_configuration_errors_of_the_service_itself_have_status_2(
    main: Main, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(_config: ParserConfig) -> None:
        raise ConfigError(["--model: no tokenizer in m", "--seal-key-file: empty"])

    with pytest.raises(SystemExit) as caught:
        main(run, "--model", "m")
    assert caught.value.code == USAGE
    assert (
        capsys.readouterr().err.splitlines()[1] == "turnwire serve parser: --seal-key-file: empty"
    )
