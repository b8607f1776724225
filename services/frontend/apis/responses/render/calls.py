"""Renders the output items of calls: functions, freeform tools, built-in tools, and searches that
this server runs."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from typing_extensions import override

from schemas.events import BlockStart, BlockStop, HostedResult, TokenLogprob
from services.frontend.apis.responses.render.events import EventWriter
from services.frontend.apis.responses.render.items import OutputItem, raw
from services.frontend.apis.responses.request.tools import ToolName
from services.frontend.apis.shared.decode import is_json
from services.frontend.apis.shared.tools import FreeformInput
from services.frontend.hosted.tools import hosted_argument, pack

ID_PREFIXES = {"tool_search": "tsc", "local_shell": "lsh", "shell": "sh", "apply_patch": "apc"}
"""Prefixes of item ids, by the kind of built-in tool."""


class FunctionItem(OutputItem):
    """A call of a function."""

    delta = "function_call_arguments"
    dispatch = "tool_call_dispatch"
    prefix, kind, member = "fc", "function_call", "arguments"

    def __init__(
        self, writer: EventWriter, turn: str, index: int, name: ToolName, call_id: str
    ) -> None:
        super().__init__(writer, f"{self.prefix}_{turn}{index:03d}", index)
        self.plain = True
        self.name = name
        self.call_id = call_id

    @override
    def begin(self) -> None:
        self.writer.item("added", self.index, self._json("in_progress"))

    @override
    def end(self, stop: BlockStop) -> Raw | None:
        if stop.complete and not self.pieces:
            self.add("{}")
        return super().end(stop)

    @override
    def final(self, stop: BlockStop) -> Raw | None:
        return self._json("completed" if stop.complete else "incomplete")

    def _end_content(self, item: Raw, stop: BlockStop) -> bool:
        text = self.text
        if not stop.complete and (not text.strip() or is_json(text, Raw)):
            return False
        if not is_json(text, dict[str, Raw]):
            self.dispatch = ""
        self._event("function_call_arguments.done", {"arguments": text, "name": self.name.name})
        return True

    def _json(self, status: str) -> Raw:
        call = {
            "id": self.id,
            "type": self.kind,
            "status": status,
            "call_id": self.call_id,
            "name": self.name.name,
        }
        namespace = {"namespace": self.name.namespace} if self.name.namespace else {}
        return raw(call | {self.member: self.text} | namespace)


class CustomItem(FunctionItem):
    """A call of a freeform tool."""

    delta = "custom_tool_call_input"
    prefix, kind, member = "ctc", "custom_tool_call", "input"

    def __init__(
        self, writer: EventWriter, turn: str, index: int, name: ToolName, call_id: str
    ) -> None:
        super().__init__(writer, turn, index, name, call_id)
        self.plain = False
        self._input = FreeformInput()

    @override
    def add(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> None:
        super().add(self._input.feed(text))

    @override
    def end(self, stop: BlockStop) -> Raw | None:
        if stop.complete:
            OutputItem.add(self, self._input.end())  # an input that was not spelled as expected
        return OutputItem.end(self, stop)

    def _end_content(self, item: Raw, stop: BlockStop) -> bool:
        if stop.complete:  # a truncated input looks like a whole one
            self._event("custom_tool_call_input.done", {"input": self.text})
        return stop.complete


class BuiltInItem(OutputItem):
    """A call of a built-in tool, sent when it is complete. With invalid arguments it becomes a
    function call, for which the client returns an error to the model."""

    dispatch = "tool_call_dispatch"

    def __init__(
        self, writer: EventWriter, turn: str, index: int, name: ToolName, call_id: str
    ) -> None:
        super().__init__(writer, f"{ID_PREFIXES[name.kind]}_{turn}{index:03d}", index)
        self._kind = name.kind
        self._call_id = call_id
        self._members: dict[str, Any] | None = None
        self._function = FunctionItem(writer, turn, index, name, call_id)

    @override
    def end(self, stop: BlockStop) -> Raw | None:
        item = super().end(stop)
        if item is None and stop.complete:
            self._function.begin()
            self._function.add(self.text)
            item = self._function.end(stop)
        return item

    @override
    def final(self, stop: BlockStop) -> Raw | None:
        self._members = _built_in_call(self._kind, self.text or "{}") if stop.complete else None
        return None if self._members is None else self._json("completed", self._members)

    def _end_content(self, item: Raw, stop: BlockStop) -> bool:
        if self._members is not None:
            self.writer.item("added", self.index, self._json("in_progress", self._members))
        return self._members is not None

    def _json(self, status: str, members: dict[str, Any]) -> Raw:
        return raw(
            {
                "id": self.id,
                "type": f"{self._kind}_call",
                "status": status,
                "call_id": self._call_id,
            }
            | members
        )


class SearchItem(OutputItem):
    """A call of web search or web fetch. The search begins at the end of its block."""

    def __init__(self, writer: EventWriter, turn: str, index: int, start: BlockStart) -> None:
        super().__init__(writer, f"ws_{turn}{index:03d}", index)
        self.call_id = start.call_id or ""
        self._kind = start.name or ""

    @override
    def final(self, stop: BlockStop) -> Raw | None:
        return self.json("in_progress") if stop.complete else None

    def _end_content(self, item: Raw, stop: BlockStop) -> bool:
        self.writer.item("added", self.index, item)
        self._event("web_search_call.in_progress", {})
        self._event("web_search_call.searching", {})
        return False

    def finish(self, result: HostedResult, *, with_sources: bool) -> Raw:
        """Ends the search, and returns the item."""
        sources = [source.url for source in result.sources] if with_sources else None
        item = self.json("failed" if result.error else "completed", sources)
        self._event("web_search_call.completed", {})
        self.writer.item("done", self.index, item)
        return item

    def json(self, status: str, sources: Sequence[str] | None = None) -> Raw:
        """The item with a status."""
        argument = hosted_argument(self._kind, self.text)
        action: dict[str, Any] = {"type": "open_page", "url": argument}
        if self._kind == "web_search":
            action = {"type": "search", "query": argument, "queries": [argument]}
            if sources is not None:
                action["sources"] = [{"type": "url", "url": url} for url in sources]
        return raw({"id": self.id, "type": "web_search_call", "status": status, "action": action})


def results_item(id: str, results: Sequence[HostedResult]) -> Raw:
    """The item that carries results to the next request, in the `encrypted_content` of reasoning,
    which every agent returns unchanged. A `web_search_call` has no member for results, and agents
    drop members that they do not know."""
    return raw(
        {
            "id": id,
            "type": "reasoning",
            "summary": [],
            "encrypted_content": pack(msgspec.json.encode(results)),
        }
    )


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


def _built_in_call(kind: str, arguments: str) -> dict[str, Any] | None:
    """The members that are specific to a complete call of a built-in tool; None where the arguments
    are invalid."""
    try:
        if kind == "local_shell":
            action = _local_shell.decode(arguments)
            return {
                "action": {"type": "exec", **msgspec.to_builtins(action), "env": action.env or {}}
            }
        if kind == "shell":
            return {"action": _shell.decode(arguments), "environment": None}
        if kind == "apply_patch":
            return {"operation": _patch.decode(arguments)}
        _object.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return None
    # An event is one line, whatever line breaks the model put between its tokens.
    return {
        "arguments": Raw(msgspec.json.format(arguments.encode(), indent=-1)),
        "execution": "client",
    }
