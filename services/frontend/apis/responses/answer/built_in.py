"""Calls of built-in tools: their items are objects made of the arguments that the model wrote."""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from schemas.events import BlockStop
from services.frontend.apis.responses.answer.events import EventWriter
from services.frontend.apis.responses.answer.items import FunctionItem, OutputItem, raw
from services.frontend.apis.responses.request.tools import ToolName

ID_PREFIXES = {"tool_search": "tsc", "local_shell": "lsh", "shell": "sh", "apply_patch": "apc"}
"""By the kind of tool."""


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


class _Delete(Struct, tag="delete_file"):
    path: str


class _Create(_Delete, tag="create_file"):
    diff: str


class _Update(_Create, tag="update_file"):
    pass


_local_shell = msgspec.json.Decoder(_LocalShell)
_shell = msgspec.json.Decoder(_Shell)
_patch = msgspec.json.Decoder(_Create | _Update | _Delete)
_object = msgspec.json.Decoder(dict[str, Raw])


class BuiltInItem(OutputItem):
    """A call of a built-in tool, sent when it is complete. With invalid arguments it becomes a function call: then the
    client returns an error to the model."""

    dispatch = "tool_call_dispatch"

    def __init__(self, writer: EventWriter, turn: str, index: int, name: ToolName, call_id: str) -> None:
        super().__init__(writer, f"{ID_PREFIXES[name.kind]}_{turn}{index:03d}", index)
        self._kind = name.kind
        self._call_id = call_id
        self._function = FunctionItem(writer, turn, index, name, call_id)

    def end(self, stop: BlockStop) -> Raw | None:
        """See `OutputItem.end`."""
        item = super().end(stop)
        if item is None and stop.complete:
            self._function.begin()
            self._function.add(self.text)
            item = self._function.end(stop)
        return item

    def final(self, stop: BlockStop) -> Raw | None:
        """See `OutputItem.final`."""
        members = _built_in_call(self._kind, self.text or "{}") if stop.complete else None
        if members is None:
            return None
        return raw(
            {"id": self.id, "type": f"{self._kind}_call", "status": "completed", "call_id": self._call_id} | members
        )

    def _end_content(self, item: Raw, stop: BlockStop) -> bool:
        self.writer.item("added", self.index, item)
        return True


def _built_in_call(kind: str, arguments: str) -> dict[str, Any] | None:
    """The members that a complete call of a built-in tool has of its own; None where the arguments are invalid."""
    try:
        if kind == "local_shell":
            action = _local_shell.decode(arguments)
            members = {key: value for key, value in msgspec.to_builtins(action).items() if value is not None}
            return {"action": {"type": "exec", **members, "env": action.env or {}}}
        if kind == "shell":
            return {"action": _shell.decode(arguments), "environment": None}
        if kind == "apply_patch":
            return {"operation": _patch.decode(arguments)}
        _object.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return None
    # An event is one line, whatever line breaks the model put between its tokens.
    return {"arguments": Raw(msgspec.json.format(arguments.encode(), indent=-1)), "execution": "client"}
