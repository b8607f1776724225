"""`turnwire check`: checks the settings and the models before any process starts."""

import sys
from collections.abc import Mapping
from typing import Any

from schemas.errors import TurnwireError
from services.cli.check.model import NO_TOOLS, require_hub_model
from services.cli.check.model_tables import ModelSettings, load_models, names_several
from services.cli.check.servers import examine_servers
from services.cli.common import CommandError
from services.cli.registry import COMMON_SETTINGS, Command
from services.runtime.config.command_line import CLEAN, FAILURE
from services.runtime.config.loader import ConfigError, Sources
from services.runtime.config.masking import mask_passwords
from services.runtime.config.stages import PreprocessorConfig
from services.runtime.config.tables import STAGES, UpConfig


def check(sources: Sources, /) -> int:
    """Checks the settings of every stage, and loads the tokenizer and chat template of the model,
    or of each model of `--models`.

    To be run before the services start, with the flags of `turnwire up` or the settings of the
    stages: what is wrong is reported once, as the last lines, instead of by every process at each
    of its starts. A model on the hub is downloaded, except for its weights. Exits with status 2 if
    a setting is wrong, with status 1 if a model cannot be loaded.
    """
    up = sources.load(UpConfig)
    several = names_several(sources, up)
    defaults: Mapping[str, Any] = {"model": None} if several else {}
    stages = sources.load_all(STAGES, defaults)
    problems: list[str] = []
    status = CLEAN
    for model in load_models(sources, up, stages["frontend"], defaults):
        try:
            print(_try_model(model), flush=True)
        except ConfigError as error:
            problems += error.problems
        except CommandError as error:
            of_which = f"model {model.worker.model_name}" if several else "model"
            print(f"turnwire check: {of_which}: {mask_passwords(error)}", file=sys.stderr)
            status = FAILURE
    if problems:
        raise ConfigError(problems)
    return status


COMMAND = Command(check, (UpConfig, *STAGES.values()), essential=(*COMMON_SETTINGS, "models"))


def _try_model(model: ModelSettings) -> str:
    """Loads a model, except for its weights, and asks its inference servers. Returns what it is.
    Raises ConfigError if it is not there, CommandError if it cannot be loaded."""
    config: PreprocessorConfig = model.stages["preprocessor"].config
    try:
        require_hub_model(config.model)
    except OSError as error:
        origin = model.stages["preprocessor"].origins["model"]
        raise ConfigError([f"Invalid value for {origin}: {error}"]) from error
    try:
        # Imports the tokenizer libraries, which takes a second.
        from services.preprocessor.model.model_setup import ModelSetup

        setup = ModelSetup.load(config)
    except (TurnwireError, ValueError, OSError) as error:
        raise CommandError(" ".join(str(error).split())) from error
    window = examine_servers(model.stages["worker"])
    window = min(filter(None, (window, setup.max_model_len)))
    tools = "" if setup.traits.inputs.tools else NO_TOOLS
    return f"{setup.card.name}: {setup.family.title}, {window:,} tokens{tools}"
