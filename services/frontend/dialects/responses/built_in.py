"""Calls of tools that the client runs and that have an item type of their own, made of the model's arguments."""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from services.frontend.dialects.responses.names import CallKind


class _LocalShell(Struct, omit_defaults=True):
    command: list[str]
    env: dict[str, str] | None = None
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


class _Shell(Struct):
    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class _Create(Struct, tag="create_file"):
    path: str
    diff: str


class _Update(Struct, tag="update_file"):
    path: str
    diff: str


class _Delete(Struct, tag="delete_file"):
    path: str


_local_shell = msgspec.json.Decoder(_LocalShell)
_shell = msgspec.json.Decoder(_Shell)
_patch = msgspec.json.Decoder(_Create | _Update | _Delete)
_object = msgspec.json.Decoder(dict[str, Raw])


def built_in_call(kind: CallKind, item_id: str, call_id: str, arguments: str) -> dict[str, Any] | None:
    """The item of a complete call; None where the arguments are not what such a call must have (apis.md B.3)."""
    try:
        made = _members(kind, arguments)
    except (msgspec.DecodeError, RecursionError):
        return None
    return {"id": item_id, "type": f"{kind}_call", "status": "completed", "call_id": call_id, **made}


def _members(kind: CallKind, arguments: str) -> dict[str, Any]:
    if kind == "local_shell":
        action = _local_shell.decode(arguments)
        env = action.env or {}
        given = {key: value for key, value in msgspec.to_builtins(action).items() if value is not None}
        return {"action": {"type": "exec", **given, "env": env}}
    if kind == "shell":
        return {"action": _shell.decode(arguments), "environment": None}
    if kind == "apply_patch":
        return {"operation": _patch.decode(arguments)}
    _object.decode(arguments)
    # An event is one line, whatever line breaks the model put between its tokens.
    return {"arguments": Raw(msgspec.json.format(arguments.encode(), indent=-1)), "execution": "client"}
