"""The fields of a configuration as options of a command line: types, flags, and the conversion of
their values, by cyclopts."""

import copy
import difflib
import re
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args, get_origin

import cyclopts
import msgspec
from cyclopts import (
    UNSET,
    App,
    Argument,
    CycloptsError,
    Parameter,
    Token,
    UnknownOptionError,
    UnusedCliTokensError,
)

from services.runtime.config.base import Config
from services.runtime.config.masking import mask_passwords, mask_servers
from services.runtime.config.names import nearest_file
from services.runtime.config.service import BusConfig

_DECIMAL_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_UNITS = {"": 1} | _DECIMAL_UNITS | _BINARY_UNITS
_NUMBER = re.compile(r"(-?\d[\d_]*(?:\.\d+)?)\s*(?:([kmgtKMGT])(i?B)?)?")
_SWITCH = {"on": True, "off": False}


def options(config: type[Config], help_texts: bool = False) -> Sequence[Argument]:
    """The fields of `config`, with those of `bus`, as arguments with types, defaults and flags.

    They must not be changed: they are made once, because that takes cyclopts 5 to 20 ms, and
    `turnwire up` reads them 36 times.
    """
    return _options(cast(Hashable, config), help_texts)


@cache
def _options(config: Any, help_texts: bool) -> Sequence[Argument]:
    fields: list[Argument] = []
    every = Parameter(
        converter=_convert, json_list=True, allow_repeating=True, negative_iterable=()
    )
    app = App(default_command=config, default_parameter=every)
    for argument in app.assemble_argument_collection(parse_docstring=help_texts):
        if argument.children:
            # Read separately, `bus` gets the parameter that nested fields do not inherit, and flags
            # without a prefix.
            fields += options(BusConfig, help_texts)
        elif not argument.keys:
            fields.append(argument)
    return fields


def as_text(value: Any) -> str:
    """Formats a value for `turnwire config`."""
    if value in (None, {}, []):
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def one_line(error: CycloptsError) -> str:
    """An error's message on one line, without details for developers."""
    if isinstance(error, UnusedCliTokensError):
        return f"unexpected argument: {mask_servers(' '.join(error.unused_tokens or ()))}"
    if isinstance(error, UnknownOptionError):
        return _unknown_option(error)
    error.verbose = False
    return mask_passwords(" ".join(str(error).split()))


def _unknown_option(error: UnknownOptionError) -> str:
    """Names the nearest flag. The dashes are not compared: by them short names are similar."""
    name = (error.token.keyword or error.token.value).partition("=")[0]
    flags = {
        flag.lstrip("-"): flag for argument in error.argument_collection for flag in argument.names
    }
    close = difflib.get_close_matches(name.lstrip("-"), flags, n=1)
    return f"Unknown option: {name}." + (f" Did you mean {flags[close[0]]}?" if close else "")


def value_of(option: Argument, tokens: Sequence[Token]) -> Any:
    """Converts `tokens` to the option's value. Raises CycloptsError."""
    last = tokens[-1]
    is_empty = last.value == "" and last.implicit_value is UNSET
    if is_empty and type(None) in get_args(option.hint):
        return None
    option = copy.copy(option)
    option.tokens = []
    for token in tokens:
        option.append(token)
    return option.convert_and_validate()


def _convert(hint: Any, tokens: Sequence[Token]) -> Any:
    """Converts as cyclopts, with units for integers, commas in lists, and files for dicts. Raises
    ValueError."""
    if tokens and isinstance(tokens[-1].implicit_value, tuple):
        return msgspec.convert(tokens[-1].implicit_value[0], hint)
    text = tokens[-1].value if tokens else ""
    if hint is int:
        return _whole_number(text)
    if hint is bool and text.lower() in _SWITCH:
        return _SWITCH[text.lower()]
    if get_origin(hint) is list:
        return _items(",".join(token.value for token in tokens))
    if get_origin(hint) is dict:
        return _mapping(hint, text)
    return cyclopts.convert(hint, tokens)


def _items(text: str) -> list[str]:
    items = [item.strip() for item in text.split(",")]
    return [item for item in items if item]


def _mapping(hint: Any, text: str) -> Any:
    """Converts `NAME=NUMBER,…` for numbers, a JSON object, or the path of a file."""
    if "=" in text and get_args(hint)[1] is int:
        return msgspec.convert(_numbers_by_name(text), hint)
    try:
        is_json = text.lstrip().startswith("{")
        content = msgspec.json.decode(text) if is_json else _read_table(text)
        return msgspec.convert(content, hint)
    except msgspec.MsgspecError as error:
        raise ValueError(f'"{text}": {error}') from error


def _numbers_by_name(text: str) -> Mapping[str, int]:
    numbers: dict[str, int] = {}
    for item in _items(text):
        name, _, number = item.partition("=")
        name = name.strip()
        if name in numbers:
            raise ValueError(f'"{text}" has a name twice')
        numbers[name] = _whole_number(number)
    return numbers


def _whole_number(text: str) -> int:
    """Parses `32768`, `32_768`, `32k` (decimal) or `32K`, `32KiB` (binary), as in vLLM."""
    match = _NUMBER.fullmatch(text.strip())
    if match is not None:
        number, unit, suffix = match.groups(default="")
        value = float(number) * _UNITS[unit.upper() if suffix == "iB" else unit]
        if value.is_integer():
            return int(value)
    raise ValueError(f'"{text}" is not a whole number')


def _read_table(path: str) -> Any:
    """Reads a JSON, YAML or TOML file. Raises ValueError."""
    suffix = Path(path).suffix
    if suffix not in (".json", ".yaml", ".yml", ".toml"):
        raise ValueError(f'"{path}" is not a JSON object, or a .json, .yaml or .toml file')
    # JSON is also YAML.
    decode = msgspec.toml.decode if suffix == ".toml" else msgspec.yaml.decode
    try:
        return decode(Path(path).expanduser().read_bytes())
    except OSError as error:
        raise ValueError(f"cannot read the file: {error}{nearest_file(path)}") from error
