"""Plans of `up`, from flags and an environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cyclopts import Token

from services.cli.up.command import COMMAND
from services.cli.up.plan import UpPlan, make_plan
from services.cli.up.specs import make_specs
from services.runtime.config.base import Config
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.loader import ConfigError, Sources
from services.runtime.config.stages import PreprocessorConfig, WorkerConfig
from tests.kit.command_lines import sources_of

CONFIGS: dict[str, type[Config]] = {
    "frontend": FrontendConfig,
    "preprocessor": PreprocessorConfig,
    "worker": WorkerConfig,
}


def plan(*argv: str, env: Mapping[str, str] | None = None, state: Path = Path("/state")) -> UpPlan:
    return make_plan(sources_of([f"--state-dir={state}", *argv], *COMMAND.settings, env=env))


def child(made: UpPlan, name: str, env: Mapping[str, str] | None = None) -> Any:
    """The configuration that a child makes of its command line and environment."""
    specs = make_specs(made, "nats://n:1" if made.embedded_nats else None, [81, 82, 83], {})
    (command,) = [spec.command for spec in specs if spec.name == name]
    config = CONFIGS[name.partition("-")[0]]
    return sources_of(command[5:], config, env=env).load(config).config


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


def problems_of_up(flags: list[str]) -> list[str]:
    """The problems that `turnwire up` prints before it starts anything. Parsing a command line
    takes fifty times as long as these tokens."""
    tokens: dict[str, list[Token]] = {}
    for flag in flags:
        name, _, value = flag.partition("=")
        field = name.removeprefix("--").replace("-", "_")
        tokens.setdefault(field, []).append(Token(keyword=name, value=value))
    try:
        make_plan(Sources(tokens))
    except ConfigError as error:
        return error.problems
    return []


def states(problem: str, flag: str, value: str) -> bool:
    """Whether the line has the flag and the value."""
    return "\n" not in problem and flag in problem and value in problem
