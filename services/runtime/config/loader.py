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

import dataclasses
import operator
import tomllib
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from cyclopts import Argument, CycloptsError, Token
from msgspec import Struct

from services.runtime.config.base import Config
from services.runtime.config.masking import mask_passwords, mask_servers
from services.runtime.config.names import (
    PREFIX,
    is_service_link,
    nearest_file,
    setting_names,
    unknown_in_env,
    unknown_in_file,
)
from services.runtime.config.options import one_line, options, value_of
from services.runtime.config.service import BusConfig
from services.runtime.config.tables import TABLES

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
        """The values that are not defaults, by name."""
        names = [name for name, origin in self.origins.items() if origin != "default"]
        return {name: self._value(name) for name in names}

    def rows(self) -> list[tuple[str, Any, str]]:
        """(name, value, origin) of every option. Passwords in URLs are masked."""
        return [
            (self._path(name), self._masked_value(name), origin)
            for name, origin in self.origins.items()
        ]

    def _path(self, name: str) -> str:
        return name if hasattr(self.config, name) else f"bus.{name}"

    def _value(self, name: str) -> Any:
        return operator.attrgetter(self._path(name))(self.config)

    def _masked_value(self, name: str) -> Any:
        value = self._value(name)
        if name == "nats_url":
            return mask_servers(value)
        return msgspec.json.decode(mask_passwords(msgspec.json.encode(value).decode()))


class Sources(Struct, frozen=True):
    """The sources of values: the tokens of flags by option, the environment, and a file."""

    flags: Mapping[str, Sequence[Token]] = {}
    env: Mapping[str, str] = {}
    file: str | None = None

    def load(self, config: type[C], defaults: Mapping[str, Any] | None = None) -> LoadedConfig[C]:
        """Loads a valid configuration. `defaults` replace its own. Raises ConfigError with all
        problems."""
        content, problems = _read(self.file)
        problems += unknown_in_file(content, self.file)
        problems += unknown_in_env(self.env)

        layers = ChainMap(*self._layers(config, content))
        values = dict(defaults or {})
        origins: dict[str, str] = {}
        for option in options(config):
            name = option.field_info.name
            tokens = layers.get(name)
            try:
                if tokens:
                    values[name] = value_of(option, tokens)
            except CycloptsError as error:
                problems.append(one_line(error))
            origins[name] = str(tokens[-1].keyword) if tokens else "default"
            if not tokens and option.field_info.required and name not in values:
                problems.append(_missing(option))

        if problems:
            raise ConfigError(problems)
        try:
            return LoadedConfig(_make(config, values), origins)
        except ValueError as error:
            raise ConfigError([_with_origin(error, origins)]) from error

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

        yield self._variables(f"{PREFIX}{table.upper()}_")
        yield self._variables(PREFIX)

        for place in (table, "bus"):
            values = content.get(place)
            if isinstance(values, dict):
                yield _file_tokens(f"{self.file} [{place}]", values)
        yield _file_tokens(f"{self.file}", content)

    def _variables(self, prefix: str) -> dict[str, Sequence[Token]]:
        """The values of variables that begin with `prefix`, by option."""
        tokens: dict[str, Sequence[Token]] = {}
        for name, value in self.env.items():
            # Compose files pass an unset variable as an empty one.
            if name.startswith(prefix) and value and not is_service_link(name, value):
                option = name.removeprefix(prefix).lower()
                tokens[option] = [Token(keyword=name, value=value)]
        return tokens


def _make(config: type[C], values: Mapping[str, Any]) -> C:
    """Makes a configuration, with that of the bus if it has one. Raises ValueError."""
    fields = {field.name for field in dataclasses.fields(config)}
    known = {name: value for name, value in values.items() if name in fields}
    if "bus" in fields:
        of_bus = setting_names(BusConfig)
        bus = {name: value for name, value in values.items() if name in of_bus}
        if bus:
            known["bus"] = BusConfig(**bus)
    return config(**known)


def _missing(option: Argument) -> str:
    name = option.field_info.name
    variable = f"{PREFIX}{name.upper()}"
    return f"{name} is required: {option.name}, {variable}, or {name} = … in the configuration file"


def _with_origin(error: ValueError, origins: Mapping[str, str]) -> str:
    """An error of a configuration, "name: reason", with where its value comes from."""
    name, _, reason = str(error).partition(": ")
    origin = origins.get(name, "default")
    return str(error) if origin == "default" else f"Invalid value for {origin}: {reason}"


def _file_tokens(place: str, values: Mapping[str, Any]) -> dict[str, Sequence[Token]]:
    """The tokens of values in a TOML file, by option."""
    return {name: [_file_token(f"{place} {name}", value)] for name, value in values.items()}


def _file_token(origin: str, value: Any) -> Token:
    """Makes the token of a value in a TOML file. A tuple protects typed values: cyclopts would read
    True as a number."""
    if isinstance(value, str):
        return Token(keyword=origin, value=value)
    return Token(keyword=origin, implicit_value=(value,))


def _read(file: str | None) -> tuple[dict[str, Any], list[str]]:
    """Reads a TOML file. Returns its content, and a line for each problem."""
    if file is None:
        return {}, []
    try:
        return tomllib.loads(Path(file).expanduser().read_text(encoding="utf-8")), []
    except tomllib.TOMLDecodeError as error:
        return {}, [f"{file} is not valid TOML: {error}"]
    except (OSError, UnicodeDecodeError) as error:
        near = nearest_file(file)
        return {}, [f"cannot read the configuration file (--config) {file}: {error}{near}"]
