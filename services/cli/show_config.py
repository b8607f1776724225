"""`turnwire config`: every setting with its value and its origin."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence

from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table

from services.runtime.config import STAGES, UpConfig
from services.runtime.config_flags import add_config_flag, add_flags, exit_with, parse_arguments
from services.runtime.config_sources import CONFIG_VARIABLE, ConfigError, Given, Loaded, load

_ANY_MODEL: Mapping[str, str] = {"model": "-"}
"""A table is wanted even where no model is configured yet."""


def main(argv: Sequence[str]) -> int:
    """Prints what the four services and `up` would run with, given these flags, this environment and this file."""
    parser = argparse.ArgumentParser(
        prog="turnwire config", usage="turnwire config [STAGE] [--json] [flags of a stage]", allow_abbrev=False
    )
    tables: dict[str, type[Struct]] = {**STAGES, "up": UpConfig}
    parser.add_argument("stage", nargs="?", choices=list(tables), help="only this one; default: all")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    add_config_flag(parser)
    add_flags(parser, *tables.values())
    arguments = parse_arguments(parser, argv)
    file = arguments.config or os.environ.get(CONFIG_VARIABLE) or None
    wanted = {name: tables[name] for name in ([arguments.stage] if arguments.stage else tables)}
    loaded, problems = _load(wanted, arguments.given, os.environ, file)
    if problems:
        exit_with("turnwire config", problems)
    if arguments.json:
        print(json.dumps({name: _as_object(one) for name, one in loaded.items()}, indent=2))
    else:
        _print(loaded)
    return 0


def _load(
    wanted: Mapping[str, type[Struct]], given: Mapping[str, Given], env: Mapping[str, str], file: str | None
) -> tuple[dict[str, Loaded[Struct]], list[str]]:
    loaded: dict[str, Loaded[Struct]] = {}
    problems: dict[str, None] = {}
    for name, config in wanted.items():
        try:
            loaded[name] = load(config, given, env, file, defaults=_ANY_MODEL)
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
    return loaded, list(problems)


def _as_object(loaded: Loaded[Struct]) -> dict[str, dict[str, str]]:
    return {name: {"value": value, "origin": origin} for name, value, origin in loaded.rows()}


def _print(loaded: Mapping[str, Loaded[Struct]]) -> None:
    console = Console()
    for name, one in loaded.items():
        table = Table("setting", "value", "origin", title=name, title_justify="left", box=box.SIMPLE_HEAD)
        for setting, value, origin in one.rows():
            table.add_row(setting, value, origin, style="dim" if origin == "default" else "")
        console.print(table, soft_wrap=not console.is_terminal)
