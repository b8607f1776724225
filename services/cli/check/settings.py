"""Checks what the settings of stages name: files, folders, addresses, engines, parsers."""

from collections.abc import Iterable, Iterator
from typing import Any

from schemas.errors import TurnwireError
from services.cli.check.files import file_problem
from services.cli.check.readers import read_setting
from services.runtime.config.loader import ConfigError, LoadedConfig
from services.runtime.config.masking import mask_servers


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
