"""What is known of a server when a client is set up, and what comes out."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from services.cli.served import ServedModel

PROVIDER = "turnwire"
"""Our provider's name in the clients that have several."""
ANY_KEY = "any"
"""Clients want a key even where the server wants none."""

Api: TypeAlias = Literal["messages", "responses", "chat"]


class Target(Struct, frozen=True):
    """A server, the model to use, and what the user asked for."""

    url: str
    """Without a trailing slash or `/v1`."""
    model: ServedModel
    others: list[ServedModel] = []
    """The server's other names, for clients that list models to choose from."""
    key: str | None = None
    api: Api | None = None
    """None: the one that the client works best with."""
    websockets: bool = False
    """For Codex: talk over a WebSocket."""
    catalogue: list[dict[str, Any]] = []
    """Codex' entries."""
    catalogue_file: bool = False
    """For Codex: keep the catalogue in a file instead of reading it from the server."""
    default: bool = False
    """Make the model the client's own default, also where the user has another."""
    folder: str | None = None
    """Where to keep the settings; None: where the client looks for them."""
    env: Mapping[str, str] = {}
    """The environment, which tells where that is."""

    @property
    def token(self) -> str:
        """What to write where a client wants a key."""
        return self.key or ANY_KEY

    @property
    def models(self) -> list[ServedModel]:
        """Every name, the chosen one first."""
        return [self.model, *self.others]


class Settings(Struct, frozen=True):
    """A file of the client's, and what must stand in it."""

    path: str
    kind: Literal["json", "toml"]
    values: dict[str, Any]
    """Merged into what is there, table by table."""
    if_absent: dict[str, Any] = {}
    """Merged where the user has said nothing himself."""
    remove: dict[str, Any] = {}
    """Taken out where it has this value, or, for None, any: what an earlier choice has written and this one has not."""
    whole: bool = False
    """The file is ours alone, and is replaced."""


class Plan(Struct, frozen=True):
    """How to set a client up."""

    client: str
    files: list[Settings]
    start: str
    """The command that starts the client with it."""
    exports: dict[str, str] = {}
    """The same as variables, for clients that can be told by them alone."""
    notes: list[str] = []
    """What the user should know."""


class BadRequest(Exception):
    """What was asked for, the client does not have."""


def place(target: Target, default: str, *, variable: str | None = None) -> str:
    """The folder of a client's settings: the one asked for, else the one that a variable names, else the client's
    default, `~` being the user's home."""
    home = target.env.get("HOME") or target.env.get("USERPROFILE") or "~"
    named = target.env.get(variable) if variable else None
    return target.folder or named or default.replace("~", home, 1)
