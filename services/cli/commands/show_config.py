"""`turnwire config`: shows every setting with its value and its origin."""

from collections.abc import Mapping
from typing import Literal

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from services.cli.registry import COMMON_SETTINGS, Command
from services.runtime.config.base import Config
from services.runtime.config.loader import Sources
from services.runtime.config.options import as_text
from services.runtime.config.tables import STAGES, UpConfig

_TABLES: Mapping[str, type[Config]] = {**STAGES, "up": UpConfig}


def show(
    sources: Sources,
    stage: Literal["frontend", "preprocessor", "worker", "parser", "up"] | None = None,
    /,
    *,
    json: bool = False,
) -> int:
    """Shows every setting of the services and of `up`, its value and its origin.

    Args:
        stage: Only these settings; default: all.
        json: Print one JSON object instead of tables.
    """
    tables: Mapping[str, type[Config]] = {stage: _TABLES[stage]} if stage else _TABLES
    # Without a model, the tables still show all other settings.
    loaded = sources.load_all(tables, defaults={"model": None})
    if json:
        rows = {
            name: {row: {"value": v, "origin": o} for row, v, o in table.rows()}
            for name, table in loaded.items()
        }
        print(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
        return 0
    console = Console(markup=False)
    if not console.is_terminal:
        console.width = 1000  # never wraps
    for name, settings in loaded.items():
        table = Table(
            "setting", "value", "origin", title=name, title_justify="left", box=box.SIMPLE_HEAD
        )
        for setting, value, origin in settings.rows():
            table.add_row(
                setting, as_text(value), origin, style="dim" if origin == "default" else ""
            )
        console.print(table)
    return 0


COMMAND = Command(show, (*STAGES.values(), UpConfig), essential=COMMON_SETTINGS)
