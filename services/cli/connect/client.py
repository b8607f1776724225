"""Defines the interface between `turnwire connect` and the modules of clients."""

import os
import pkgutil
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from string import Template
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct

from services.cli.common import UsageError
from services.cli.connect.server import ServedModel

PROVIDER = "turnwire"
"""Turnwire's name in clients that have several providers."""
ANY_KEY = "any"
"""The key for a server without keys. Clients require one."""
ENTRY_POINTS = "turnwire.clients"
"""The entry point group through which other packages add clients."""

ApiName: TypeAlias = Literal["messages", "responses", "chat"]
FileKind: TypeAlias = Literal["json", "toml", "yaml", "env"]
"""The form of a settings file. env: lines `export NAME=VALUE` for a shell."""


class Target(Struct, frozen=True):
    """A server, the model to use, and the user's options."""

    url: str
    """Without a trailing slash or `/v1`."""
    model: ServedModel
    others: list[ServedModel] = []
    """The server's other model names, for clients with a list to choose from."""
    key: str | None = None
    api: ApiName | None = None
    """None: the API that works best with the client."""
    websockets: bool = False
    """For Codex: use a WebSocket."""
    catalogue: list[dict[str, Any]] = []
    """The entries of Codex' model catalogue."""
    catalogue_file: bool = False
    """For Codex: read the catalogue from a file, not from the server."""
    default: bool = False
    """Make the model the client's default, replacing another."""
    folder: str | None = None
    """Folder for the settings; None: the client's default."""
    env: Mapping[str, str] = {}
    """The environment, with variables that name the client's folder."""

    @property
    def token(self) -> str:
        """The key to write into the settings."""
        return self.key or ANY_KEY

    @property
    def model_word(self) -> str:
        """The name of the model as a word of a shell command."""
        return shlex.quote(self.model.id)

    @property
    def models(self) -> list[ServedModel]:
        """All models, starting with the one to use."""
        return [self.model, *self.others]

    def base_url(self, api: ApiName) -> str:
        """The address to which a client of an API appends the API's paths."""
        return self.url if api == "messages" else f"{self.url}/v1"

    def settings_folder(self, default: str, variable: str | None = None) -> str:
        """The folder that the user chose, else the value of `variable`, else `default`, as an
        absolute path."""
        home = self.env.get("HOME") or self.env.get("USERPROFILE") or "~"
        from_env = self.env.get(variable) if variable else None
        return os.path.abspath(
            os.path.expanduser(self.folder or from_env or default.replace("~", home, 1))
        )


class ClientSettings(Struct, frozen=True):
    """Values for one settings file of a client."""

    path: str
    kind: FileKind
    values: dict[str, Any]
    """Merged into the file, table by table."""
    if_absent: dict[str, Any] = {}
    """Merged where the file has no value."""
    new_file: dict[str, Any] = {}
    """Merged into a file that has no values at all."""
    remove: dict[str, Any] = {}
    """Removed if the file has this value; None: any value. For values that other options of
    `connect` have set."""
    whole: bool = False
    """Replace the file instead of merging."""


class ClientPlan(Struct, frozen=True):
    """The settings of a client for a target, or a library's program."""

    files: list[ClientSettings]
    start: str
    """The command that starts the client with them."""
    exports: dict[str, str] = {}
    """Environment variables with the same effect, for clients that need no file."""
    notes: list[str] = []
    """Printed for the user."""
    code: str = ""
    """For a library: a program that uses the server, instead of settings."""


class BadRequest(UsageError):
    """An option that the client does not support."""


class AgentClient(Struct, frozen=True):
    """An agent client or library. Its name on the command line is its module's, with hyphens, or
    its entry point's."""

    title: str
    make_settings: Callable[[Target], ClientPlan]
    apis: Sequence[ApiName] = get_args(ApiName)

    def plan(self, target: Target) -> ClientPlan:
        """Makes the settings for a target. Raises BadRequest for an API that the client does not
        support."""
        if target.api not in (None, *self.apis):
            raise BadRequest(f"{self.title} uses {' or '.join(self.apis)}, not {target.api}")
        return self.make_settings(target)


def client_names() -> list[str]:
    """Lists all clients: modules in `clients/`, files in `programs/`, and entry points. Imports
    none of them."""
    return sorted({*_modules(), *_programs(), *entry_points(group=ENTRY_POINTS).names})


def load_client(name: str) -> AgentClient:
    """Loads a client: `CLIENT` of a module in `clients/`, a program, or the object that an entry
    point names."""
    client: AgentClient
    if name in _modules():
        client = import_module(f"services.cli.connect.clients.{name.replace('-', '_')}").CLIENT
    elif (program := _programs().get(name)) is not None:
        client = AgentClient(name, partial(plan_program, program), apis=("chat",))
    else:
        (entry, *_) = entry_points(group=ENTRY_POINTS, name=name)
        client = entry.load()
    return client


def plan_program(file: Path, target: Target) -> ClientPlan:
    """Makes a library's program with quoted values for `$base`, `$key`, `$model` and
    `$litellm_model`."""
    model = target.model.id
    values = {
        "base": f"{target.url}/v1",
        "key": target.token,
        "model": model,
        "litellm_model": f"openai/{model}",
    }
    quoted = {name: msgspec.json.encode(value).decode() for name, value in values.items()}
    return ClientPlan([], "", code=Template(file.read_text("utf-8")).substitute(quoted))


def _modules() -> list[str]:
    modules = pkgutil.iter_modules(import_module("services.cli.connect.clients").__path__)
    return [module.name.replace("_", "-") for module in modules]


def _programs() -> dict[str, Path]:
    return {
        path.name.partition(".")[0]: path
        for path in (Path(__file__).parent / "programs").glob("*.txt")
    }
