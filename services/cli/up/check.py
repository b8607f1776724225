"""`turnwire check`: checks the settings and the model before any process starts."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from schemas.errors import TurnwireError
from services.cli.common import CommandError, UsageError
from services.cli.registry import Command
from services.runtime.config import STAGES, PreprocessorConfig
from services.runtime.config.command_line import CLEAN, USAGE
from services.runtime.config.loader import Sources
from services.tokenization.model_files import find_file, local_folder

PACKAGES = {
    "transformers": ("torch", "torch"),
    "trtllm": ("tensorrt_llm", "trtllm"),
    "vllm": ("vllm", "vllm"),
    "tracing": ("opentelemetry.exporter.otlp.proto.http", "otel"),
}
"""The package that an engine or tracing requires, and the extra that installs it."""


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
    print(f"{setup.card.name}: {setup.family.title}, {setup.max_model_len:,} tokens")
    return CLEAN


COMMAND = Command(check, tuple(STAGES.values()))


def engine_problem(engine: str) -> str | None:
    """Returns which package for an engine, or for tracing, is not installed; None if all are."""
    package, extra = PACKAGES.get(engine, ("", ""))
    with suppress(ImportError):  # a parent package is missing
        if not package or importlib.util.find_spec(package) is not None:
            return None
    install = f"{sys.executable} -m pip install -e '.[{extra}]'"
    return f"{engine} needs {package}, which is not installed; in a clone: {install}"


def model_problem(model: str) -> str | None:
    """Returns why the model cannot be loaded from local files; None if it can, or if it may be on the hub."""
    if Path(model).expanduser().is_file():
        return f"{model} is a file; a model is a directory or a hub id"
    try:
        folder = local_folder(model)
    except OSError as error:
        return str(error)
    return None if folder is None or (folder / "config.json").is_file() else f"{model} has no config.json"


def require_model(flags: Iterable[str]) -> None:
    """Raises CommandError with the problem that `turnwire check` finds with these flags. Uses another process: the
    libraries that read a model leave 90 MB allocated."""
    command = [sys.executable, "-m", "services.cli.main", "check", *flags]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != CLEAN:
        problem = ran.stderr.strip().rpartition("\n")[2].removeprefix("turnwire check: ")
        raise (UsageError if ran.returncode == USAGE else CommandError)(problem)


def require_hub_model(model: str) -> None:
    """Raises OSError if a model is neither local nor on the hub: one error instead of one from each process."""
    try:
        if local_folder(model) is not None or find_file(model, "config.json") is not None:
            return
    except ValueError:  # a name that no model of the hub can have
        pass
    raise FileNotFoundError(f"there is no directory {model} here, and the hub has no such model or is out of reach")
