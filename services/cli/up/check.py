"""`turnwire check`: checks the settings and the model before any process starts."""

from schemas.errors import TurnwireError
from services.cli.common import CommandError
from services.cli.registry import Command
from services.cli.up.plan import model_problem, require_hub_model
from services.runtime.config import STAGES, PreprocessorConfig
from services.runtime.config.command_line import CLEAN
from services.runtime.config.loader import Sources


def check(sources: Sources, /) -> int:
    """Checks the settings of every stage, and loads the model's tokenizer and chat template.

    To be run before the services start: what is wrong is reported once, as the last line, instead of by every process
    at each of its starts. A model on the hub is downloaded, except for its weights. Exits with status 2 if a setting is
    wrong, with status 1 if the model cannot be loaded.
    """
    config: PreprocessorConfig = sources.load_all(STAGES)["preprocessor"].config
    try:
        if problem := model_problem(config.model):
            raise FileNotFoundError(problem)
        require_hub_model(config.model)
        from services.preprocessor.model import ModelSetup  # imports the tokenizer libraries, which takes a second

        setup = ModelSetup.load(config)
    except (TurnwireError, ValueError, OSError) as error:
        raise CommandError(f"model: {' '.join(str(error).split())}") from error
    print(f"{setup.card.name}: {setup.family.name}, {setup.max_model_len:,} tokens")
    return CLEAN


COMMAND = Command(check, tuple(STAGES.values()))
