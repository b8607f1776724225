"""The interface between `turnwire connect` and a client: what a client module gets and what it returns."""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from string import Template
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct

from services.cli.common import UsageError
from services.cli.connect.served import ServedModel

PROVIDER = "turnwire"
"""Turnwire's name in clients that have several providers."""
ANY_KEY = "any"
"""Clients require a key even where the server does not."""
ENTRY_POINTS = "turnwire.clients"
"""The entry point group through which other packages add clients."""

Api: TypeAlias = Literal["messages", "responses", "chat"]


class Target(Struct, frozen=True):
    """A server, the model to use, and the user's options."""

    url: str
    """Without a trailing slash or `/v1`."""
    model: ServedModel
    others: list[ServedModel] = []
    """The server's other model names, for clients with a list to choose from."""
    key: str | None = None
    api: Api | None = None
    """None: the one that works best with the client."""
    websockets: bool = False
    """For Codex: use a WebSocket."""
    catalogue: list[dict[str, Any]] = []
    """The entries of Codex' model catalogue."""
    catalogue_file: bool = False
    """For Codex: read the catalogue from a file, not from the server."""
    default: bool = False
    """Make the model the client's default, replacing another."""
    folder: str | None = None
    """Folder for the settings; None: the client's own."""
    env: Mapping[str, str] = {}
    """The environment; its variables name the client's own folder."""

    @property
    def token(self) -> str:
        """The key to write into the settings."""
        return self.key or ANY_KEY

    @property
    def models(self) -> list[ServedModel]:
        """All models, the chosen one first."""
        return [self.model, *self.others]

    def settings_folder(self, default: str, variable: str | None = None) -> str:
        """The folder that the user chose, else the value of `variable`, else `default`, with `~` as the user's home."""
        home = self.env.get("HOME") or self.env.get("USERPROFILE") or "~"
        from_env = self.env.get(variable) if variable else None
        return self.folder or from_env or default.replace("~", home, 1)


class Settings(Struct, frozen=True):
    """Values for one settings file of a client."""

    path: str
    kind: Literal["json", "toml"]
    values: dict[str, Any]
    """Merged into the file, table by table."""
    if_absent: dict[str, Any] = {}
    """Merged where the file has no value."""
    remove: dict[str, Any] = {}
    """Removed where the file has this value, or, for None, any: left over from other options of `connect`."""
    whole: bool = False
    """Replaces the file."""


class Plan(Struct, frozen=True):
    """The settings of a client for one target."""

    files: list[Settings]
    start: str
    """The command that starts the client with them."""
    exports: dict[str, str] = {}
    """Environment variables that have the same effect, for clients that need nothing else."""
    notes: list[str] = []
    """Printed for the user."""
    code: str = ""
    """For a library, in place of settings: a program that uses the server."""


class BadRequest(UsageError):
    """An option that the client does not support."""


class Client(Struct, frozen=True):
    """An agent client or library. Its name on the command line is that of its module, with hyphens, or entry point."""

    title: str
    make_settings: Callable[[Target], Plan]
    apis: Sequence[Api] = get_args(Api)

    def plan(self, target: Target) -> Plan:
        """The settings for a target. Raises BadRequest for an API that the client does not use."""
        if target.api not in (None, *self.apis):
            raise BadRequest(f"{self.title} uses {' or '.join(self.apis)}, not {target.api}")
        return self.make_settings(target)


def client_names() -> list[str]:
    """The names of all clients: one for each module in `clients/`, each file in `programs/` and each entry point.

    Imports none of them.
    """
    return sorted({*_modules(), *_programs(), *entry_points(group=ENTRY_POINTS).names})


def load_client(name: str) -> Client:
    """The `CLIENT` of the module of that name in `clients/`, the program, or the object that an entry point names."""
    loaded: Client
    if name in _modules():
        loaded = import_module(f"services.cli.connect.clients.{name.replace('-', '_')}").CLIENT
    elif (program := _programs().get(name)) is not None:
        loaded = Client(name, lambda target: Plan([], "", code=program_for(program, target)), apis=("chat",))
    else:
        (entry, *_) = entry_points(group=ENTRY_POINTS, name=name)
        loaded = entry.load()
    return loaded


def program_for(file: Path, target: Target) -> str:
    """A library's program with the server's values, quoted, for `$base`, `$key`, `$model` and `$litellm_model`."""
    model = target.model.id
    values = {"base": f"{target.url}/v1", "key": target.token, "model": model, "litellm_model": f"openai/{model}"}
    quoted = {name: msgspec.json.encode(value).decode() for name, value in values.items()}
    return Template(file.read_text("utf-8")).substitute(quoted)


def _modules() -> list[str]:
    modules = pkgutil.iter_modules(import_module("services.cli.connect.clients").__path__)
    return [module.name.replace("_", "-") for module in modules]


def _programs() -> dict[str, Path]:
    return {path.name.partition(".")[0]: path for path in (Path(__file__).parent / "programs").glob("*.txt")}
