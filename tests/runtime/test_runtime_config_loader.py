"""The sources of a value, their precedence, and the errors of wrong values."""

from pathlib import Path
from typing import Any

import pytest

from services.runtime.config.base import Config
from services.runtime.config.frontend import FrontendConfig
from services.runtime.config.loader import ConfigError, LoadedConfig, Sources
from services.runtime.config.stages import WorkerConfig
from tests.kit.command_lines import sources_of


def load(
    config: type[Config], env: dict[str, str] | None = None, file: str | None = None
) -> LoadedConfig[Any]:
    return Sources(env=env or {}, file=file).load(config)


def toml(tmp_path: Path, text: str) -> str:
    file = tmp_path / "turnwire.toml"
    file.write_text(text)
    return str(file)


def problems(
    config: type[Config], env: dict[str, str] | None = None, file: str | None = None
) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(config, env, file)
    return caught.value.problems


def test_flag_beats_stage_variable_beats_variable_beats_table_beats_file_beats_default(
    tmp_path: Path,
) -> None:
    text = "log_level = 'debug'\ndrain_s = 1\n[frontend]\nport = 1\ndrain_s = 2\n"
    file = toml(tmp_path, f"{text}[bus]\nbeat_interval_s = 1.5\n")
    env = {
        "TURNWIRE_PORT": "2",
        "TURNWIRE_FRONTEND_PORT": "3",
        "TURNWIRE_HOST": "0.0.0.0",
        "TURNWIRE_CONFIG": file,
    }
    loaded = sources_of(["--http-port", "4"], FrontendConfig, env=env).load(FrontendConfig)
    for name, value, origin in (
        ("port", 4, "--http-port"),
        ("host", "0.0.0.0", "TURNWIRE_HOST"),
        ("drain_s", 2.0, f"{file} [frontend] drain_s"),
        ("log_level", "debug", f"{file} log_level"),
        ("attempts", 3, "default"),
    ):
        assert (getattr(loaded.config, name), loaded.origins[name]) == (value, origin)
    assert loaded.config.bus.beat_interval_s == 1.5
    assert loaded.origins["beat_interval_s"] == f"{file} [bus] beat_interval_s"
    for variables, port in ((env, 3), ({"TURNWIRE_PORT": "2"}, 2), ({}, 1)):
        assert load(FrontendConfig, variables, file).config.port == port


def test_every_problem_is_named_with_its_source(tmp_path: Path) -> None:
    file = toml(tmp_path, "[worker]\nslots = 'many'\nslotz = 1\n[wroker]\n[frontend]\nprot = 1\n")
    env = {"TURNWIRE_SCRIPT_MODE": "vlm", "TURNWIRE_WATCHDOG_S": "0", "TURNWIRE_MODLE": "x"}
    assert problems(WorkerConfig, env, file) == [
        f'{file} [worker]: unknown name "slotz"; did you mean "slots"?',
        f'{file}: unknown name "wroker"; did you mean "worker"?',
        f'{file} [frontend]: unknown name "prot"; did you mean "port"?',
        'unknown variable "TURNWIRE_MODLE"; did you mean "TURNWIRE_MODEL"?',
        "model is required: --model, TURNWIRE_MODEL, or model = … in the configuration file",
        f'Invalid value for {file} [worker] slots: "many" is not a whole number',
        'Invalid value "vlm" for TURNWIRE_SCRIPT_MODE. Choose from: "agent", "request".',
        'Invalid value "0.0" for TURNWIRE_WATCHDOG_S. Must be > 0.',
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[worker\n", "is not valid TOML"),
        ("engine = true\n", "engine: Expected `str`, got `bool`"),
        ("[bus]\ndead_after_s = 1\n", "dead_after_s must be at least twice beat_interval_s"),
        ("[bus]\nnats_user = 'u'\nnats_creds_file = 'c'\n", "nats_creds_file excludes nats_user"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    found = problems(WorkerConfig, {"TURNWIRE_MODEL": "m"}, toml(tmp_path, text))
    assert problem in " ".join(found)
    assert [line for line in found if "\n" in line] == []


def test_kubernetes_service_variables_are_not_configuration() -> None:
    env = {"TURNWIRE_FRONTEND_PORT": "tcp://10.0.0.7:8000", "TURNWIRE_FRONTEND_SERVICE_PORT": "80"}
    assert load(FrontendConfig, env).config == FrontendConfig()
