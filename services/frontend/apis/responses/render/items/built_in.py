"""Makes the items of calls of built-in tools from their arguments.

The model sees such a tool as a function, so its arguments may not fit into the item.
"""

from typing import Any, TypeAlias

import msgspec
from msgspec import Raw, Struct

from services.frontend.apis.responses import wire_answers

ID_PREFIXES = {"tool_search": "tsc", "local_shell": "lsh", "shell": "sh", "apply_patch": "apc"}
"""Prefixes of item ids, by the kind of built-in tool."""


BuiltInCall: TypeAlias = (
    wire_answers.OutputLocalShellCall
    | wire_answers.OutputShellCall
    | wire_answers.OutputPatchCall
    | wire_answers.OutputToolSearchCall
)


class LocalShellArguments(Struct, omit_defaults=True):
    """The arguments of `local_shell`."""

    command: list[str]
    env: dict[str, str] | None = None
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


_local_shell = msgspec.json.Decoder(LocalShellArguments)
_shell = msgspec.json.Decoder(wire_answers.ShellAction)
_patch = msgspec.json.Decoder(wire_answers.PatchOperation)
_object = msgspec.json.Decoder(dict[str, Raw])


def built_in_call(kind: str, id: str, call_id: str, arguments: str) -> BuiltInCall | None:
    """The item of a complete call; None where the arguments are invalid. `kind`: a key of
    `ID_PREFIXES`."""
    try:
        return _call(kind, id, call_id, arguments)
    except (msgspec.DecodeError, RecursionError):
        return None


def _call(kind: str, id: str, call_id: str, arguments: str) -> BuiltInCall:
    status: wire_answers.ItemStatus = "completed"
    match kind:
        case "local_shell":
            command = _local_shell_action(arguments)
            return wire_answers.OutputLocalShellCall(
                id=id, status=status, call_id=call_id, action=command
            )
        case "shell":
            commands = _shell.decode(arguments)
            return wire_answers.OutputShellCall(
                id=id, status=status, call_id=call_id, action=commands
            )
        case "apply_patch":
            patch = _patch.decode(arguments)
            return wire_answers.OutputPatchCall(
                id=id, status=status, call_id=call_id, operation=patch
            )
        case _:
            return wire_answers.OutputToolSearchCall(
                id=id,
                status=status,
                call_id=call_id,
                arguments=object_on_one_line(arguments),
                execution="client",
            )


def _local_shell_action(arguments: str) -> dict[str, Any]:
    action = _local_shell.decode(arguments)
    return {"type": "exec", **msgspec.to_builtins(action), "env": action.env or {}}


def object_on_one_line(arguments: str) -> Raw:
    """The JSON of an object. An event is one line, whatever line breaks the model put between its
    tokens. Raises msgspec.DecodeError and RecursionError."""
    _object.decode(arguments)
    return Raw(msgspec.json.format(arguments.encode(), indent=-1))
