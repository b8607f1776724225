"""Loads configurations from flags, `TURNWIRE_*` variables, a TOML file and defaults, in this order
of precedence.

- Environment: `TURNWIRE_<FIELD>` holds for every stage with this field, `TURNWIRE_<STAGE>_<FIELD>`
  for one stage.
- File: a field at the top level holds for every stage, a field in a table (`[frontend]`, `[bus]`,
  `[up]` …) for one.

cyclopts converts and validates the values. Its own sources for the environment and TOML are not
used: they stop at the first problem, do not combine both levels, and read empty variables and those
of Kubernetes as values.
"""

import copy
import dataclasses
import difflib
import operator
import re
import tomllib
from collections import ChainMap
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, get_args, get_origin

import cyclopts
import msgspec
from cyclopts import UNSET, App, Argument, CycloptsError, Parameter, Token, UnusedCliTokensError
from msgspec import Struct

from services.runtime.config.settings import TABLES, BusConfig, Config

PREFIX = "TURNWIRE_"
CONFIG_VARIABLE = "TURNWIRE_CONFIG"
KEY_VARIABLE = "TURNWIRE_API_KEY"
"""The user's own key, which no service reads: `turnwire connect`, `catalog` and `replay` send
it."""
_RESERVED = ("TURNWIRE_TEST_", "TURNWIRE_BENCH_", "TURNWIRE_COMPOSE_")
# Kubernetes sets these variables in every pod for every Service of the namespace: a Service named
# `turnwire-frontend` makes TURNWIRE_FRONTEND_PORT=tcp://10.0.0.7:8000.
_SERVICE_LINK = re.compile(r".*_SERVICE_(HOST|PORT)(_.*)?|.*_PORT_\d+_(TCP|UDP|SCTP)(_.*)?")
# A password may have unescaped characters: all up to the last @ is masked, also where the scheme is
# missing.
_PIECES = re.compile(r"([\s\"]|://)")
_USER = re.compile(r"(?:^|[/:=\"'(])([^/:=\"'(]+):")
_SERVERS = re.compile(r"(,\s*(?=[a-z]+://))", re.IGNORECASE)
_USERS = re.compile(r"\A([a-z]+://)?.*@", re.DOTALL | re.IGNORECASE)
_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}
_NUMBER = re.compile(r"(-?\d[\d_]*(?:\.\d+)?)\s*(?:([kmgtKMGT])(i?B)?)?")

C = TypeVar("C", bound=Config)


class ConfigError(ValueError):
    """The configuration is wrong; `problems` has one line for each error."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class LoadedConfig(Struct, Generic[C], frozen=True):
    """A configuration, and the origin of each option's value: a flag, a variable, a place in the
    file, or `default`."""

    config: C
    origins: dict[str, str]

    def chosen(self) -> dict[str, Any]:
        """Returns the values that are not defaults, by name."""
        paths = {
            name: self._path(name) for name, origin in self.origins.items() if origin != "default"
        }
        return {name: operator.attrgetter(path)(self.config) for name, path in paths.items()}

    def _path(self, name: str) -> str:
        return name if hasattr(self.config, name) else f"bus.{name}"

    def rows(self) -> list[tuple[str, Any, str]]:
        """Returns (name, value, origin) of every option. Passwords in URLs are masked."""
        rows = []
        for name, origin in self.origins.items():
            path = self._path(name)
            value = operator.attrgetter(path)(self.config)
            masked = mask_passwords(msgspec.json.encode(value).decode())
            rows.append(
                (
                    path,
                    mask_servers(value) if name == "nats_url" else msgspec.json.decode(masked),
                    origin,
                )
            )
        return rows


class Sources(Struct, frozen=True):
    """The sources of values: the tokens of flags by option, the environment, and a file."""

    flags: Mapping[str, Sequence[Token]] = {}
    env: Mapping[str, str] = {}
    file: str | None = None

    def load(self, config: type[C], defaults: Mapping[str, Any] | None = None) -> LoadedConfig[C]:
        """Loads a valid configuration. `defaults` replace its own. Raises ConfigError with all
        problems."""
        content, problems = _read(self.file)
        problems += _unknown_in_file(content, self.file) + _unknown_in_env(self.env)
        layers = ChainMap(*self._layers(config, content))
        fields = {field.name for field in dataclasses.fields(config)}
        values = {name: value for name, value in (defaults or {}).items() if name in fields}
        of_bus = _names(BusConfig) if "bus" in fields else set()
        bus = {name: value for name, value in (defaults or {}).items() if name in of_bus}
        origins: dict[str, str] = {}
        for option in options(config):
            name = option.field_info.name
            tokens = layers.get(name)
            origins[name] = str(tokens[-1].keyword) if tokens else "default"
            try:
                if tokens:
                    (values if name in fields else bus)[name] = _value(option, tokens)
                elif option.field_info.required and name not in values:
                    places = (
                        f"{option.name}, {PREFIX}{name.upper()}, or {name} = … in the "
                        "configuration file"
                    )
                    problems.append(f"{name} is required: {places}")
            except CycloptsError as error:
                problems.append(one_line(error))
        if problems:
            raise ConfigError(problems)
        try:
            return LoadedConfig(
                config(**values, **({"bus": BusConfig(**bus)} if bus else {})), origins
            )
        except ValueError as error:
            name, _, reason = str(error).partition(": ")
            origin = origins.get(name, "default")
            raise ConfigError(
                [str(error) if origin == "default" else f"Invalid value for {origin}: {reason}"]
            ) from error

    def load_all(
        self, configs: Mapping[str, type[Config]], defaults: Mapping[str, Any] | None = None
    ) -> dict[str, LoadedConfig[Any]]:
        """Loads all of `configs` by name. Raises ConfigError with the problems of all, each
        once."""
        loaded: dict[str, LoadedConfig[Any]] = {}
        problems: dict[str, None] = {}
        for name, config in configs.items():
            try:
                loaded[name] = self.load(config, defaults)
            except ConfigError as error:
                problems |= dict.fromkeys(error.problems)
        if problems:
            raise ConfigError(list(problems))
        return loaded

    def _layers(
        self, config: type[Config], content: Mapping[str, Any]
    ) -> Iterator[dict[str, Sequence[Token]]]:
        """Yields values by option, the layer that takes precedence first."""
        (table,) = (name for name, listed in TABLES.items() if listed is config)
        yield dict(self.flags)
        for prefix in (f"{PREFIX}{table.upper()}_", PREFIX):
            yield {
                name.removeprefix(prefix).lower(): [Token(keyword=name, value=value)]
                for name, value in self.env.items()
                # Compose files pass an unset variable as an empty one.
                if name.startswith(prefix) and value and not _is_service_link(name, value)
            }
        for place in (table, "bus"):
            values = content.get(place)
            if isinstance(values, dict):
                yield {
                    name: [_file_token(f"{self.file} [{place}] {name}", v)]
                    for name, v in values.items()
                }
        yield {name: [_file_token(f"{self.file} {name}", value)] for name, value in content.items()}


def options(config: type[Config], help_texts: bool = False) -> Sequence[Argument]:
    """Returns the fields of `config`, with those of `bus`, as arguments with types, defaults and
    flags.

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


def one_line(error: CycloptsError) -> str:
    """Returns an error's message on one line, without details for developers."""
    if isinstance(error, UnusedCliTokensError):
        return f"unexpected argument: {mask_servers(' '.join(error.unused_tokens or ()))}"
    error.verbose = False
    return mask_passwords(" ".join(str(error).split()))


def mask_passwords(text: object) -> str:
    """Returns `text` with the user and the password of every URL replaced."""
    pieces = _PIECES.split(str(text))  # one pattern for the whole text would take quadratic time
    for at in range(0, len(pieces), 2):
        if "@" in pieces[at]:
            pieces[at] = _mask_piece(
                pieces[at], pieces[at - 2] if at and pieces[at - 1] == "://" else None
            )
    return "".join(pieces)


def _mask_piece(piece: str, scheme: str | None) -> str:
    """Masks the login in a text without spaces. `scheme`: what comes before `://`; None: it does
    not begin a URL."""
    host = 0
    if scheme is not None:
        authority = piece if scheme.endswith(("nats", "tls")) else piece.partition("/")[0]
        host = authority.rfind("@") + 1
    login, found, address = piece[host:].rpartition("@")
    if (user := _USER.search(login)) is not None:
        login, found = login[: user.start(1)], "***@"
    return ("***@" if host else "") + login + found + address


def mask_servers(urls: str) -> str:
    """Returns the setting `nats_url` without users, passwords and tokens."""
    return "".join(_USERS.sub(r"\1***@", part) for part in _SERVERS.split(urls))


def as_text(value: Any) -> str:
    """Formats a value for `turnwire config`."""
    if value in (None, {}, []):
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def nearest(name: str, names: Iterable[str]) -> str:
    """Returns `; did you mean "x"?`, or nothing if no name is similar."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else ""


def nearest_file(path: str) -> str:
    """Returns `; did you mean "x"?` with the most similar name in the same directory, or
    nothing."""
    place = Path(path).expanduser()
    try:
        names = {file.name for file in place.parent.iterdir()} - {
            place.name
        }  # a directory may have this name
    except OSError:
        return ""
    close = difflib.get_close_matches(place.name, sorted(names), n=1)
    return f'; did you mean "{place.parent / close[0]}"?' if close else ""


def _value(option: Argument, tokens: Sequence[Token]) -> Any:
    """Converts `tokens` to the option's value. Raises CycloptsError."""
    if (
        type(None) in get_args(option.hint)
        and tokens[-1].value == ""
        and tokens[-1].implicit_value is UNSET
    ):
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
    if hint is bool:
        words = {"on": True, "off": False}
        return words[text.lower()] if text.lower() in words else cyclopts.convert(hint, tokens)
    if get_origin(hint) is list:
        return [item.strip() for token in tokens for item in token.value.split(",") if item.strip()]
    if get_origin(hint) is dict and "=" in text and get_args(hint)[1] is int:
        pairs = [item.partition("=") for item in text.split(",") if item.strip()]
        numbers = {name.strip(): _whole_number(number) for name, _, number in pairs}
        if len(numbers) < len(pairs):
            raise ValueError(f'"{text}" has a name twice')
        return msgspec.convert(numbers, hint)
    if get_origin(hint) is dict:
        try:
            is_json = text.lstrip().startswith("{")
            return msgspec.convert(
                msgspec.json.decode(text) if is_json else _read_table(text), hint
            )
        except msgspec.MsgspecError as error:
            raise ValueError(f'"{text}": {error}') from error
    return cyclopts.convert(hint, tokens)


def _whole_number(text: str) -> int:
    """Parses `32768`, `32_768`, `32k` (decimal) or `32K`, `32KiB` (binary), as in vLLM."""
    if match := _NUMBER.fullmatch(text.strip()):
        number, unit, binary = match.groups()
        value = float(number) * _UNITS[unit.upper() if binary == "iB" else unit or ""]
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


def _file_token(origin: str, value: Any) -> Token:
    """Makes the token of a value in a TOML file. A tuple protects typed values: cyclopts would read
    True as a number."""
    return (
        Token(keyword=origin, value=value)
        if isinstance(value, str)
        else Token(keyword=origin, implicit_value=(value,))
    )


def _read(file: str | None) -> tuple[dict[str, Any], list[str]]:
    if file is None:
        return {}, []
    try:
        return tomllib.loads(Path(file).expanduser().read_text(encoding="utf-8")), []
    except tomllib.TOMLDecodeError as error:
        return {}, [f"{file} is not valid TOML: {error}"]
    except (OSError, UnicodeDecodeError) as error:
        return {}, [
            f"cannot read the configuration file (--config) {file}: {error}{nearest_file(file)}"
        ]


def _unknown_in_file(content: Mapping[str, Any], file: str | None) -> list[str]:
    everywhere = set(TABLES).union(*map(_names, TABLES.values()))
    problems = []
    for name, value in content.items():
        if name not in everywhere:
            problems.append(f'{file}: unknown name "{name}"{nearest(name, everywhere)}')
        elif name in TABLES and not isinstance(value, dict):
            problems.append(f"{file}: {name} is a table: write [{name}]")
        elif name in TABLES:
            names = _names(TABLES[name])
            problems += [
                f'{file} [{name}]: unknown name "{n}"{nearest(n, names)}'
                for n in value
                if n not in names
            ]
    return problems


def _unknown_in_env(env: Mapping[str, str]) -> list[str]:
    names = {
        name
        for table, config in TABLES.items()
        for n in _names(config)
        for name in (n, f"{table}_{n}")
    }
    variables = {CONFIG_VARIABLE, KEY_VARIABLE, *(PREFIX + name.upper() for name in names)}
    return [
        f'unknown variable "{name}"{nearest(name, variables)}'
        for name, value in env.items()
        if name.startswith(PREFIX) and name not in variables and not name.startswith(_RESERVED)
        if not _is_service_link(name, value)
    ]


def _names(config: type[Config]) -> set[str]:
    names = {field.name for field in dataclasses.fields(config)}
    return names - {"bus"} | _names(BusConfig) if "bus" in names else names


def _is_service_link(name: str, value: str) -> bool:
    return bool(_SERVICE_LINK.fullmatch(name)) or (
        name.endswith("_PORT") and value.startswith(("tcp://", "udp://"))
    )
