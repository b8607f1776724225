"""Reads calls of tools that the client ran, and their results."""

from collections import deque
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from schemas.conversation import Call, Text
from schemas.events import HostedResult
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.parse.items import content
from services.frontend.apis.responses.parse.items.history import ItemHistory
from services.frontend.apis.responses.parse.members import convert, convert_item
from services.frontend.apis.responses.parse.tools.reader import add_tools
from services.frontend.apis.responses.parse.tools.request_tools import RequestTools
from services.frontend.apis.responses.parse.tools.specs import SEARCH_KIND, TOOL_SEARCH
from services.frontend.content.hosted_tools import (
    TOO_MANY,
    found_tools,
    hosted_argument,
    refused_search,
    result_part,
)

_ANSWERED = {
    # Codex returns the result of a local shell as that of a function.
    "function_call_output": ("function_call", "local_shell_call"),
    "custom_tool_call_output": ("custom_tool_call",),
    "shell_call_output": ("shell_call",),
    "local_shell_call_output": ("local_shell_call",),
    "apply_patch_call_output": ("apply_patch_call",),
}
"""The types of the calls that an output may belong to."""


class ToolCallReader:
    """Adds calls and results to the history, and tools that a search found to the request's."""

    def __init__(self, history: ItemHistory, tools: RequestTools, unknown: list[str]) -> None:
        """`unknown`: gets the types of the parts that are left out."""
        self._history = history
        self._unknown = unknown
        self._tools = tools
        self._search: str | None = None
        """The call id of the client's last search for tools."""
        self._searches: deque[Call] = deque()
        """Searches of this server, until their results come."""
        self._searches_read = 0
        self._call_types: dict[str, str] = {}
        """Types of the items of calls by their call ids."""
        self._local_shells: dict[str, str] = {}
        """Call ids of local shell calls by the ids of their items."""

    def read_call(self, kind: str, raw: Raw, field_path: str) -> None:
        """Adds a call: of a function, a freeform tool, a shell or `apply_patch`. Raises Invalid."""
        match kind:
            case "function_call":
                call = _function_call(convert(wire.ResponsesFunctionCall, raw, field_path))
            case "custom_tool_call":
                call = _custom_call(convert(wire.ResponsesCustomCall, raw, field_path))
            case "shell_call":
                call = _shell_call(convert(wire.ShellCall, raw, field_path))
            case "local_shell_call":
                call = self._local_shell_call(convert(wire.ShellCall, raw, field_path), field_path)
            case _:
                call = _patch_call(convert(wire.PatchCall, raw, field_path))
        self._call_types[call.call_id] = kind
        self._history.add_call(self._tools.shown(call))

    def read_search(self, item: wire.SearchCall) -> None:
        """Adds a search for tools, if the client ran it, or if this server has one."""
        call_id = item.call_id or item.id
        if item.execution == "server":
            self._read_own_search(item, call_id)
        elif call_id is not None:
            self._search = call_id
            self._history.add_call(
                Call(call_id, TOOL_SEARCH, _json(item.arguments), item_id=item.id)
            )

    def _read_own_search(self, item: wire.SearchCall, call_id: str | None) -> None:
        if self._tools.search is None:
            return
        self._searches_read += 1
        call_id = call_id or f"search_{self._searches_read}"
        call = Call(call_id, self._tools.search, _json(item.arguments), item_id=item.id)
        self._searches.append(call)
        self._history.add_call(call)

    def read_result(self, kind: str, raw: Raw, field_path: str) -> None:
        """Adds the result of such a call. Raises Invalid."""
        match kind:
            case "function_call_output" | "custom_tool_call_output":
                output = self._output(raw, field_path)
                self._check_type(kind, output.call_id, field_path)
                self._read_output(output, field_path)
            case "local_shell_call_output":
                output = self._output(raw, field_path)
                self._check_type(kind, self._local_shell_id(output), field_path)
                self._read_local_shell(output, field_path)
            case "shell_call_output":
                shell_output = convert(wire.ShellOutput, raw, field_path)
                self._check_type(kind, shell_output.call_id, field_path)
                self._read_shell(shell_output, field_path)
            case _:
                patch_output = convert(wire.PatchOutput, raw, field_path)
                self._check_type(kind, patch_output.call_id, field_path)
                self._read_patch(patch_output, field_path)

    def _check_type(self, kind: str, call_id: str | None, field_path: str) -> None:
        """Raises Invalid for the output of a known call of another kind."""
        call_type = self._call_types.get(call_id or "")
        if call_id is not None and call_type is not None and call_type not in _ANSWERED[kind]:
            self._history.refuse_unpaired(call_id, field_path, kind.replace("_", " "))

    def read_found_tools(self, item: wire.MoreTools, field_path: str) -> None:
        """Adds the tools that a search found, and its result if the search is in the history.
        Raises Invalid."""
        call_id = item.call_id or self._search
        if item.execution == "server" and self._searches:
            self._read_own_result(item, self._searches.popleft(), field_path)
            return
        if item.execution == "server" or call_id is None:
            add_tools(self._tools, item.tools, f"{field_path}.tools")
            return
        names = add_tools(self._tools, item.tools, f"{field_path}.tools", from_search=True)
        self._history.add_result(call_id, found_tools(names), field_path)

    def _read_own_result(self, item: wire.MoreTools, call: Call, field_path: str) -> None:
        """Adds the result of a search of this server, as it was when it ran."""
        names = add_tools(self._tools, item.tools, f"{field_path}.tools", from_search=True)
        result = HostedResult(call.call_id, call.name, SEARCH_KIND, call.arguments, tools=names)
        if item.status == "incomplete":
            argument = hosted_argument(SEARCH_KIND, call.arguments)
            result = replace(result, error=refused_search(SEARCH_KIND, argument) or TOO_MANY)
        part = result_part(result)
        self._history.add_result(call.call_id, part.parts, field_path, is_error=part.is_error)

    def _local_shell_call(self, item: wire.ShellCall, field_path: str) -> Call:
        action = convert(dict[str, Any], item.action, f"{field_path}.action")
        action.pop("type", None)
        if item.id is not None:
            self._local_shells[item.id] = item.call_id
        arguments = msgspec.json.encode(action).decode()
        return Call(item.call_id, "local_shell", arguments, item_id=item.id)

    def _output(self, raw: Raw, field_path: str) -> wire.CallOutput:
        return convert_item(wire.CallOutput, raw, field_path, self._unknown)

    def _read_local_shell(self, item: wire.CallOutput, field_path: str) -> None:
        parts = content.parts(item.output, f"{field_path}.output")
        self._history.add_result(self._local_shell_id(item), parts, field_path)

    def _local_shell_id(self, item: wire.CallOutput) -> str | None:
        """The id of the call. In the native API `id` repeats the call's `call_id`; some clients
        send the id of the call's item."""
        if item.call_id is not None:
            return item.call_id or item.id
        if self._history.has_call(item.id):
            return item.id
        return self._local_shells.get(item.id or "", item.id)

    def _read_shell(self, item: wire.ShellOutput, field_path: str) -> None:
        chunks = [Text(_chunk(chunk)) for chunk in item.output]
        self._history.add_result(item.call_id, chunks, field_path)

    def _read_output(self, item: wire.CallOutput, field_path: str) -> None:
        name = None
        if item.name:
            name = self._tools.rendered_name(item.name, item.namespace)
        parts = content.parts(item.output, f"{field_path}.output")
        self._history.add_result(item.call_id, parts, field_path, name=name)

    def _read_patch(self, item: wire.PatchOutput, field_path: str) -> None:
        if item.status == "failed":
            text = item.output or "The patch could not be applied."
            self._history.add_result(item.call_id, [Text(text)], field_path, is_error=True)
        else:
            text = item.output or "The patch was applied."
            self._history.add_result(item.call_id, [Text(text)], field_path)


def _function_call(item: wire.ResponsesFunctionCall) -> Call:
    return Call(item.call_id, item.name, item.arguments, "function", item.namespace, item.id)


def _custom_call(item: wire.ResponsesCustomCall) -> Call:
    arguments = msgspec.json.encode({"input": item.input}).decode()
    return Call(item.call_id, item.name, arguments, "custom", item.namespace, item.id)


def _shell_call(item: wire.ShellCall) -> Call:
    return Call(item.call_id, "shell", _json(item.action), item_id=item.id)


def _patch_call(item: wire.PatchCall) -> Call:
    return Call(item.call_id, "apply_patch", _json(item.operation), item_id=item.id)


def _json(raw: Raw) -> str:
    """JSON as the client spelled it."""
    return bytes(raw).decode()


def _chunk(chunk: wire.ShellChunk) -> str:
    """The output of one command, and how it ended."""
    outcome = chunk.outcome or {}
    lines = [part.rstrip("\n") for part in (chunk.stdout, chunk.stderr) if part]
    if outcome.get("type") == "timeout":
        lines.append("[timed out]")
    elif outcome.get("exit_code"):
        lines.append(f"[exit code {outcome['exit_code']}]")
    return "\n".join(lines)
