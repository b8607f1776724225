"""Checks the names of settings in files and variables, and finds the right one that is nearest."""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from services.runtime.config.base import Config
from services.runtime.config.service import BusConfig
from services.runtime.config.tables import TABLES

PREFIX = "TURNWIRE_"
CONFIG_VARIABLE = "TURNWIRE_CONFIG"
START_VARIABLE = "TURNWIRE_START"
"""The random part of a process's id. A supervisor sets it, to know the process on the bus."""
KEY_VARIABLE = "TURNWIRE_API_KEY"
"""The user's own key, which no service reads: `turnwire connect`, `catalog` and `replay` send
it."""
_CLOSE_FILE = 0.8
"""The least similarity of a file's name and its misspelling: a folder may have any other names."""
_RESERVED = ("TURNWIRE_TEST_", "TURNWIRE_BENCH_", "TURNWIRE_COMPOSE_")
# Kubernetes sets these variables in every pod for every Service of the namespace: a Service named
# `turnwire-frontend` makes TURNWIRE_FRONTEND_PORT=tcp://10.0.0.7:8000.
_SERVICE_LINK = re.compile(r".*_SERVICE_(HOST|PORT)(_.*)?|.*_PORT_\d+_(TCP|UDP|SCTP)(_.*)?")


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean "x"?`, or nothing if no name is similar."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else ""


def nearest_file(path: str) -> str:
    """`; did you mean "x"?` with the most similar name in the same directory, or nothing."""
    place = Path(path).expanduser()
    try:
        names = {file.name for file in place.parent.iterdir()}
    except OSError:
        return ""
    names.discard(place.name)  # a directory may have this name
    close = difflib.get_close_matches(place.name, sorted(names), n=1, cutoff=_CLOSE_FILE)
    return f'; did you mean "{place.parent / close[0]}"?' if close else ""


def setting_names(config: type[Config]) -> set[str]:
    """The names of a configuration's settings, those of the bus included."""
    names = {field.name for field in dataclasses.fields(config)}
    if "bus" in names:
        return names - {"bus"} | setting_names(BusConfig)
    return names


def unknown_in_file(content: Mapping[str, Any], file: str | None) -> Iterator[str]:
    """Yields a line for each name in a TOML file that is not a setting or a table of them."""
    everywhere = set(TABLES).union(*map(setting_names, TABLES.values()))
    for name, value in content.items():
        if name not in everywhere:
            yield f'{file}: unknown name "{name}"{nearest(name, everywhere)}'
        elif name in TABLES and not isinstance(value, dict):
            yield f"{file}: {name} is a table: write [{name}]"
        elif name in TABLES:
            yield from _unknown_in_table(value, setting_names(TABLES[name]), f"{file} [{name}]")


def _unknown_in_table(table: Mapping[str, Any], names: set[str], place: str) -> Iterator[str]:
    for name in table:
        if name not in names:
            yield f'{place}: unknown name "{name}"{nearest(name, names)}'


def unknown_in_env(env: Mapping[str, str]) -> Iterator[str]:
    """Yields a line for each variable with this project's prefix that sets nothing."""
    variables = {CONFIG_VARIABLE, KEY_VARIABLE, START_VARIABLE}
    for table, config in TABLES.items():
        for name in setting_names(config):
            variables |= {PREFIX + name.upper(), f"{PREFIX}{table}_{name}".upper()}

    for variable, value in env.items():
        ours = variable.startswith(PREFIX) and not variable.startswith(_RESERVED)
        if ours and variable not in variables and not is_service_link(variable, value):
            yield f'unknown variable "{variable}"{nearest(variable, variables)}'


def is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes set a variable, for a Service of the namespace."""
    if _SERVICE_LINK.fullmatch(name):
        return True
    return name.endswith("_PORT") and value.startswith(("tcp://", "udp://"))
