"""`turnwire check`: checks the settings and the model before any process starts."""

from collections.abc import Iterable, Iterator
from typing import Any

from schemas.errors import TurnwireError
from services.cli.check.files import file_problem
from services.cli.check.model import NO_TOOLS, require_hub_model
from services.cli.check.readers import read_setting
from services.cli.check.servers import examine_servers
from services.cli.common import CommandError
from services.cli.registry import COMMON_SETTINGS, Command
from services.runtime.config.command_line import CLEAN
from services.runtime.config.loader import ConfigError, LoadedConfig, Sources
from services.runtime.config.masking import mask_servers
from services.runtime.config.stages import PreprocessorConfig
from services.runtime.config.tables import STAGES


def check(sources: Sources, /) -> int:
    """Checks the settings of every stage, and loads the model's tokenizer and chat template.

    To be run before the services start: what is wrong is reported once, as the last line, instead
    of by every process at each of its starts. A model on the hub is downloaded, except for its
    weights. Exits with status 2 if a setting is wrong, with status 1 if the model cannot be loaded.
    """
    stages = sources.load_all(STAGES)
    check_settings(stages.values())
    config: PreprocessorConfig = stages["preprocessor"].config
    try:
        require_hub_model(config.model)
    except OSError as error:
        raise ConfigError(
            [f"Invalid value for {stages['preprocessor'].origins['model']}: {error}"]
        ) from error
    try:
        # Imports the tokenizer libraries, which takes a second.
        from services.preprocessor.model import ModelSetup

        setup = ModelSetup.load(config)
    except (TurnwireError, ValueError, OSError) as error:
        raise CommandError(f"model: {' '.join(str(error).split())}") from error
    window = examine_servers(stages["worker"])
    window = min(filter(None, (window, setup.max_model_len)))
    tools = "" if setup.traits.inputs.tools else NO_TOOLS
    print(f"{setup.card.name}: {setup.family.title}, {window:,} tokens{tools}")
    return CLEAN


COMMAND = Command(check, tuple(STAGES.values()), essential=COMMON_SETTINGS)


def check_settings(stages: Iterable[LoadedConfig[Any]]) -> None:
    """Reads what the settings of stages name: files, folders, addresses, engines, parsers. Defaults
    are not checked.

    Raises ConfigError with all problems, each with the flag (or the variable, or the place in the
    file), the value, and where there is one, the nearest that would do.
    """
    problems: dict[str, None] = {}
    for loaded in stages:
        for name, value, problem in _problems(loaded):
            value_text = str(value)
            if name in ("nats_url", "engine_url"):
                value_text = mask_servers(value_text)
            text = problem
            if not isinstance(value, list | dict) and value_text not in problem:
                text = f'"{value_text}": {problem}'
            problems[f"Invalid value for {loaded.origins[name]}: {text}"] = None
    if problems:
        raise ConfigError(list(problems))


def _problems(loaded: LoadedConfig[Any]) -> Iterator[tuple[str, Any, str]]:
    """Yields name, value and problem of each setting that cannot work here."""
    chosen = {name: value for name, value in loaded.chosen().items() if value not in (None, [], {})}
    all_there = True
    for name, value in chosen.items():
        problem = file_problem(name, value)
        if problem:
            all_there = False
            yield name, value, problem
    if not all_there:  # the readers would fail with the same
        return
    for name, value in chosen.items():
        try:
            read_setting(name, value, loaded.config)
        except (OSError, ValueError, TurnwireError) as error:
            yield name, value, " ".join(str(error).split())
