"""One loader for every configuration Struct: flags > TURNWIRE_* variables > TOML file > defaults.

Every value keeps its origin. Nothing is guessed and nothing is ignored: an unknown name in the file or the environment
is refused with the nearest one there is, and all problems are reported at once.

- Environment: `TURNWIRE_<FIELD>` for every stage that has the field, `TURNWIRE_<STAGE>_<FIELD>` for one stage only.
- File: fields at the top for every stage, and tables for one: `[frontend]`, `[worker]` …; also `[bus]` and `[up]`.
The narrower name wins over the wider one of the same source.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from msgspec import NODEFAULT, MsgspecError, Struct

from services.runtime.config import TABLES
from services.runtime.config_options import Option, convert, expects, options, parse

PREFIX = "TURNWIRE_"
CONFIG_VARIABLE = "TURNWIRE_CONFIG"
_RESERVED = ("TURNWIRE_TEST_", "TURNWIRE_BENCH_", "TURNWIRE_COMPOSE_")
# Kubernetes puts these into every pod for every Service of the namespace: a Service named `turnwire-frontend` makes
# TURNWIRE_FRONTEND_PORT=tcp://10.0.0.7:8000. They are no configuration.
_SERVICE_LINK = re.compile(r".*_SERVICE_(HOST|PORT)(_.*)?|.*_PORT_\d+_(TCP|UDP|SCTP)(_.*)?")

C = TypeVar("C", bound=Struct)


class ConfigError(ValueError):
    """The configuration is wrong; `problems` says everything that is, one line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Given(Struct, frozen=True):
    """What one source says about one option: still text (flag, variable), or typed already (file, switch)."""

    value: Any
    kind: Literal["flag", "env", "file"]
    name: str
    """The spelling that was used: `--http-port`, `TURNWIRE_PORT`, `turnwire.toml [frontend] port`."""


class Loaded(Struct, Generic[C], frozen=True):
    """A configuration, and for each option by name where its value comes from: a spelling, or `default`."""

    config: C
    origins: dict[str, str]

    def rows(self) -> list[tuple[str, str, str]]:
        """(name, value, origin) of every option, ready to print: passwords in URLs are left out."""
        found = []
        for option in options(type(self.config)).values():
            value: Any = self.config
            for part in option.path:
                value = getattr(value, part)
            found.append((".".join(option.path), shown(value), self.origins[option.name]))
        return found


def load(
    config: type[C],
    flags: Mapping[str, Given] | None = None,
    env: Mapping[str, str] | None = None,
    file: str | Path | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Loaded[C]:
    """A whole and valid `config`. `defaults` go before its own. Raises ConfigError with every problem there is."""
    table = next(name for name, known in TABLES.items() if known is config)
    env = env or {}
    content, problems = _read(file)
    problems += _unknown_in_file(content, file) + _unknown_in_env(env)
    content = {name: value for name, value in content.items() if name not in TABLES or isinstance(value, dict)}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, option in options(config).items():
        given = (flags or {}).get(name) or _from_env(option, table, env) or _from_file(option, table, content, file)
        origins[name] = given.name if given else "default"
        try:
            value = _value(option, given, (defaults or {}).get(name, option.default))
        except (ValueError, OSError, MsgspecError) as error:
            problems.append(_problem(option, given, error))
            continue
        if value is not NODEFAULT:
            _put(values, option.path, value)
    if problems:
        raise ConfigError(problems)
    try:
        return Loaded(_build(config, values), origins)
    except ValueError as error:
        raise ConfigError([str(error)]) from error


def shown(value: Any) -> str:
    """A value as people may see it."""
    if value is None or value in ({}, []):
        return "-"
    if isinstance(value, list):
        return ", ".join(str(v) for v in value)
    return re.sub(r"(?<=://)[^/@,\s]*@", "***@", str(value))


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean "x"?`, or nothing where no name is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else ""


def _value(option: Option, given: Given | None, default: Any) -> Any:
    if given is None:
        if default is NODEFAULT:
            raise ValueError("no value given")
        return default
    if given.kind == "file" or not isinstance(given.value, str):
        return convert(option, given.value)
    return parse(option, given.value)


def _problem(option: Option, given: Given | None, error: Exception) -> str:
    if given is None:
        flag, variable = "--" + option.name.replace("_", "-"), PREFIX + option.name.upper()
        return f"{option.name} is required: {flag}, {variable}, or {option.name} = … in the configuration file"
    reason = f" ({error})" if isinstance(error, OSError) else ""
    return f"{given.name}: {given.value!r} is not {expects(option)}{reason}"


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        values = values.setdefault(part, {})
    values[path[-1]] = value


def _build(config: type[C], values: dict[str, Any]) -> C:
    nested = {name: _build(TABLES[name], value) for name, value in values.items() if name in TABLES}
    return config(**{**values, **nested})


def _from_env(option: Option, table: str, env: Mapping[str, str]) -> Given | None:
    for variable in (f"{PREFIX}{table.upper()}_{option.name.upper()}", f"{PREFIX}{option.name.upper()}"):
        # An empty variable is what compose files pass for one that was not set.
        if env.get(variable) and not _is_service_link(variable, env[variable]):
            return Given(env[variable], "env", variable)
    return None


def _from_file(option: Option, table: str, content: dict[str, Any], file: str | Path | None) -> Given | None:
    name, places = option.name, [table]
    if len(option.path) > 1:
        places.append(option.path[0])
    for place in places:
        if name in content.get(place, {}):
            return Given(content[place][name], "file", f"{file} [{place}] {name}")
    if name in content:
        return Given(content[name], "file", f"{file} {name}")
    return None


def _read(file: str | Path | None) -> tuple[dict[str, Any], list[str]]:
    if file is None:
        return {}, []
    try:
        return tomllib.loads(Path(file).expanduser().read_text(encoding="utf-8")), []
    except (OSError, UnicodeDecodeError) as error:
        return {}, [f"cannot read the configuration file {file}: {error}"]
    except tomllib.TOMLDecodeError as error:
        return {}, [f"{file} is not valid TOML: {error}"]


def _unknown_in_file(content: dict[str, Any], file: str | Path | None) -> list[str]:
    everywhere = {name for config in TABLES.values() for name in options(config)} | set(TABLES)
    problems = []
    for name, value in content.items():
        if name in TABLES and not isinstance(value, dict):
            problems.append(f"{file}: {name} is a table: write [{name}]")
        elif name in TABLES:
            known = options(TABLES[name])
            problems += [f'{file} [{name}]: unknown name "{n}"{nearest(n, known)}' for n in value if n not in known]
        elif name not in everywhere:
            problems.append(f'{file}: unknown name "{name}"{nearest(name, everywhere)}')
    return problems


def _unknown_in_env(env: Mapping[str, str]) -> list[str]:
    known = {CONFIG_VARIABLE}
    for table, config in TABLES.items():
        for name in options(config):
            known |= {f"{PREFIX}{name.upper()}", f"{PREFIX}{table.upper()}_{name.upper()}"}
    return [
        f'unknown variable "{name}"{nearest(name, known)}'
        for name, value in env.items()
        if name.startswith(PREFIX)
        and name not in known
        and not name.startswith(_RESERVED)
        and not _is_service_link(name, value)
    ]


def _is_service_link(name: str, value: str) -> bool:
    return bool(_SERVICE_LINK.fullmatch(name)) or (name.endswith("_PORT") and value.startswith(("tcp://", "udp://")))
