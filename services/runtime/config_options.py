"""The fields of a configuration Struct as a flat list of options, and how text becomes their values.

Nested Structs (`bus`) are flattened: `nats_url` is one name on the command line, in the environment and in a file.
"""

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec import inspect as mi

_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZED = re.compile(r"(-?\d+(?:\.\d+)?)\s*([kmgtKMGT])(i?B)?")
_WORDS = {"yes": True, "on": True, "true": True, "1": True, "no": False, "off": False, "false": False, "0": False}


class Option(Struct, frozen=True, eq=False):
    """One value that can be configured. `path` leads to it through nested Structs."""

    path: tuple[str, ...]
    type: Any
    """The annotation, bounds included."""
    info: mi.Type
    """What msgspec makes of the annotation, `None` taken out of the union."""
    nullable: bool
    default: Any
    """NODEFAULT: a value must be given."""
    help: str

    @property
    def name(self) -> str:
        """The name on every surface."""
        return self.path[-1]

    @property
    def is_bool(self) -> bool:
        """A switch: `--x` and `--no-x`."""
        return isinstance(self.info, mi.BoolType)

    @property
    def is_list(self) -> bool:
        """Its flag may be repeated."""
        return isinstance(self.info, mi.ListType)


@functools.cache
def options(config: type[Struct]) -> Mapping[str, Option]:
    """All options of `config` by name, in the order of its fields. Raises TypeError where two have the same name."""
    found: dict[str, Option] = {}
    for option in _walk(config, ()):
        if option.name in found:  # pragma: no cover - a mistake in config.py, caught when any test imports it
            raise TypeError(f"{config.__name__} has two options named {option.name}")
        found[option.name] = option
    return MappingProxyType(found)


def _walk(config: type[Struct], above: tuple[str, ...]) -> list[Option]:
    hints, docs, found = get_type_hints(config, include_extras=True), _field_docs(config), []
    for field in msgspec.structs.fields(config):
        kind = mi.type_info(hints[field.name])
        if isinstance(kind, mi.StructType):
            found += _walk(kind.cls, (*above, field.name))
            continue
        default = field.default if field.default_factory is NODEFAULT else field.default_factory()
        nullable = False
        if isinstance(kind, mi.UnionType):
            nullable = any(isinstance(t, mi.NoneType) for t in kind.types)
            (kind,) = (t for t in kind.types if not isinstance(t, mi.NoneType))
        path = (*above, field.name)
        found.append(Option(path, hints[field.name], kind, nullable, default, docs.get(field.name, "")))
    return found


def _field_docs(config: type[Struct]) -> dict[str, str]:
    """The string under each field: Python keeps it in the source only."""
    docs: dict[str, str] = {}
    for cls in reversed(config.__mro__):
        if not issubclass(cls, Struct) or cls is Struct:
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, after in zip(body.body, body.body[1:], strict=False):
            match statement, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = " ".join(text.split())
    return docs


def parse(option: Option, text: str) -> Any:
    """The value that `text` (of a flag or a variable) means. Raises ValueError or OSError."""
    if option.nullable and not text:
        return None
    match option.info:
        case mi.BoolType():
            if text.lower() not in _WORDS:
                raise ValueError(f"{text!r} is neither yes nor no")
            return _WORDS[text.lower()]
        case mi.IntType():
            return convert(option, _human_int(text))
        case mi.FloatType():
            return convert(option, float(text))
        case mi.ListType():
            items = (
                msgspec.json.decode(text) if text.startswith("[") else [t.strip() for t in text.split(",") if t.strip()]
            )
            return convert(option, items)
        case mi.DictType():
            return convert(option, msgspec.json.decode(text) if text.lstrip().startswith("{") else _read_table(text))
    return convert(option, text)


def convert(option: Option, value: Any) -> Any:
    """A typed value (of a file, or already parsed) checked against the option's type and bounds. Raises ValueError."""
    if isinstance(option.info, mi.IntType) and isinstance(value, str):
        value = _human_int(value)
    if isinstance(option.info, mi.DictType) and isinstance(value, str):
        value = _read_table(value)
    return msgspec.convert(value, option.type)


def _human_int(text: str) -> int:
    """`32768`, `32_768`, `32k` (decimal) or `32K`, `32KiB` (binary), as vLLM reads its integers."""
    if sized := _SIZED.fullmatch(text.strip()):
        number, unit, binary = sized.groups()
        value = float(number) * _SIZES[unit.upper() if binary == "iB" else unit]
        if value != int(value):
            raise ValueError(f"{text!r} is not a whole number")
        return int(value)
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def _read_table(path: str) -> Any:
    decoders: dict[str, Any] = {
        ".json": msgspec.json.decode,
        ".yaml": msgspec.yaml.decode,
        ".yml": msgspec.yaml.decode,
        ".toml": msgspec.toml.decode,
    }
    decode = decoders.get(Path(path).suffix)
    if decode is None:
        raise ValueError(f"{path!r} is neither a JSON object nor the name of a .json, .yaml or .toml file")
    return decode(Path(path).expanduser().read_bytes())


def expects(option: Option) -> str:
    """What an option takes, in words for people."""
    words = _words(option.info)
    return f"{words}, or nothing" if option.nullable else words


def _words(info: mi.Type) -> str:
    match info:
        case mi.LiteralType(values=values):
            return "one of " + ", ".join(str(v) for v in values)
        case mi.BoolType():
            return "true or false"
        case mi.IntType(ge=ge, le=le):
            return (
                "a whole number" + (f" from {ge}" if ge is not None else "") + (f" to {le}" if le is not None else "")
            )
        case mi.FloatType(ge=ge, gt=gt):
            return (
                "a number"
                + (f" of at least {ge:g}" if ge is not None else "")
                + (f" above {gt:g}" if gt is not None else "")
            )
        case mi.ListType():
            return "a list, separated by commas"
        case mi.DictType():
            return "a JSON object, or a .json, .yaml or .toml file"
    return "text"
