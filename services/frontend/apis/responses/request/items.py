"""Converts input items to messages of the conversation.

Consecutive items that the model made (reasoning, messages, calls) become one message with their
parts in order. Agents send all results after all calls: consecutive results become one message,
sorted by their calls, because many templates match them only by position. Ids of items never reach
a prompt.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from schemas.conversation import (
    Call,
    Media,
    Message,
    Part,
    Reasoning,
    Result,
    ResultPart,
    Text,
    ToolReference,
)
from schemas.errors import Invalid
from schemas.events import HostedResult
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.errors import convert
from services.frontend.apis.responses.request import content
from services.frontend.apis.responses.request.body import MESSAGE, ResponsesRequest
from services.frontend.apis.responses.request.content import AS_TEXT, IGNORED, hosted_text
from services.frontend.apis.responses.request.tools import TOOL_SEARCH, RequestTools, ToolName
from services.frontend.apis.shared.content import CallHistory
from services.frontend.apis.shared.decode import is_set
from services.frontend.hosted.tools import result_part, unpack

COMPACTED = "The conversation before this point was compacted. Summary of it:\n\n"
"""Precedes the summary of a compaction item in the prompt."""


_PREFIX = "turnwire.compaction.1\n"
"""Distinguishes a sealed summary from sealed reasoning, so that neither is accepted as the other."""


class TextSealer(Protocol):
    """Seals and opens text, for the dialect, which has no key."""

    def seal(self, text: str) -> str:
        """The sealed form of a text."""

    def open(self, blob: str) -> str | None:
        """The text; None for a blob that is foreign, damaged or made with another key."""


def seal_summary(sealer: TextSealer, summary: str) -> str:
    """The `encrypted_content` of a compaction item."""
    return sealer.seal(_PREFIX + summary)


def open_summary(sealer: TextSealer, blob: str) -> str | None:
    """The summary in a compaction item; None where this deployment did not seal it as one."""
    text = sealer.open(blob)
    return text.removeprefix(_PREFIX) if text is not None and text.startswith(_PREFIX) else None


class ItemReader(CallHistory):
    """Collects the messages of a request, and the tools and settings in its items."""

    def __init__(self, tools: RequestTools, sealer: TextSealer | None, *, pairing: bool) -> None:
        """`pairing`: an output without its call is an error."""
        super().__init__(pairing=pairing)
        self.notes: list[str] = []
        """The kinds of items that were left out."""
        self.reasoning: Raw = Raw(b"null")
        self.text: Raw = Raw(b"null")
        self._tools = tools
        self._sealer = sealer
        self._parts: list[Part] = []
        """The parts of the assistant's message that is not complete yet."""
        self._ids: list[str] = []
        """The ids of that message's items without a part that has the id."""
        self._results: list[Result] = []
        self._search: str | None = None
        """The call id of the last search for tools."""
        self._searches: list[int] = []
        """Positions among `_parts` of searches without results yet."""
        self._shells: dict[str, str] = {}
        """Call ids of local shell calls by the ids of their items."""

    def read(self, request: ResponsesRequest) -> None:
        """Reads the items of a request. Raises Invalid."""
        for index, (item, kind) in enumerate(zip(request.items, request.kinds, strict=True)):
            name, at = kind.type or MESSAGE, request.place(index)
            if (reader := _READERS.get(name)) is not None:
                shape, read = reader
                read(self, convert(shape, item, at), at)
            elif name in AS_TEXT:
                self._add(Text(hosted_text(name, item)))
                if name == "web_search_call":
                    self._searches.append(len(self._parts) - 1)
            elif name not in IGNORED:
                self.notes.append(name)

    def close(self) -> None:
        """Completes the current message. Call it after the last item."""
        if self._parts:
            self.messages.append(Message("assistant", self._parts, ids=self._ids))
            self._parts = []
        self._ids = []
        self._searches = []
        if self._results:
            self._add_results(self._results)
            self._results = []

    def _add(self, *parts: Part) -> None:
        if self._results:
            self.close()
        self._parts += parts

    def _message(self, message: wire.Message, at: str) -> None:
        parts = content.parts(message.content, f"{at}.content")
        if message.role == "assistant":
            self._add(*parts)
            self._ids += [message.id] if message.id else []
            return
        self.close()
        if parts or message.role == "user":
            self.messages.append(Message(message.role, [*parts]))

    def _reasoning(self, item: wire.ReasoningItem, at: str) -> None:
        """Adds reasoning: its text, else its seal, else its summary, which also replaces a foreign
        seal. A summary that repeats the text, as ours do, is left out."""
        text = "".join(part.text for part in item.content or ()) or None
        summary = [part.text for part in item.summary or () if part.text]
        if (results := _carried_results(item.encrypted_content)) is not None:
            self._hosted_results(results, at)
            return
        seal = item.encrypted_content or None
        if text is None and summary:
            opened = (
                self._sealer.open(seal) if seal is not None and self._sealer is not None else None
            )
            if seal is None or self._sealer is not None:
                text = opened or "\n\n".join(summary)
        if text is None and seal is None:
            self._add()
            self._ids += [item.id] if item.id else []
            return
        if text is not None and text == "\n\n".join(summary):
            summary = []
        self._add(Reasoning(text, seal, summary, item.id))

    def _hosted_results(self, results: Sequence[HostedResult], at: str) -> None:
        """Adds the results of the previous searches, which become calls. Searches of a tool that is
        not served stay text."""
        results = [result for result in results if self._tools.runs(result.name)]
        if not results:
            return
        calls = [Call(result.call_id, result.name, result.arguments) for result in results]
        self._add()
        if len(self._searches) == len(calls):
            for position, call in zip(self._searches, calls, strict=True):
                self._parts[position] = call
        else:
            self._parts += calls
        for part in self._parts:
            if isinstance(
                part, Call
            ):  # those between them get new positions, for the order of results
                self._add_call(part, ToolName("function", part.name, part.namespace).rendered)
        for result in map(result_part, results):
            self._result(result.call_id, result.parts, at, is_error=result.is_error)

    def _call(self, call: Call) -> None:
        self._add(call)
        self._add_call(call, ToolName("function", call.name, call.namespace).rendered)

    def _function_call(self, call: wire.FunctionCall, at: str) -> None:
        self._call(
            Call(call.call_id, call.name, call.arguments, "function", call.namespace, call.id)
        )

    def _custom_call(self, call: wire.CustomCall, at: str) -> None:
        arguments = msgspec.json.encode({"input": call.input}).decode()
        self._call(Call(call.call_id, call.name, arguments, "custom", call.namespace, call.id))

    def _shell_call(self, call: wire.ShellCall, at: str) -> None:
        self._call(Call(call.call_id, "shell", _json(call.action), item_id=call.id))

    def _patch_call(self, call: wire.PatchCall, at: str) -> None:
        self._call(Call(call.call_id, "apply_patch", _json(call.operation), item_id=call.id))

    def _local_shell_call(self, call: wire.ShellCall, at: str) -> None:
        action = convert(dict[str, Any], call.action, "action")
        action.pop("type", None)
        if call.id is not None:
            self._shells[call.id] = call.call_id
        self._call(
            Call(call.call_id, "local_shell", msgspec.json.encode(action).decode(), item_id=call.id)
        )

    def _search_call(self, call: wire.SearchCall, at: str) -> None:
        if call.execution == "server" or (call.call_id is None and call.id is None):
            return
        self._search = call.call_id or call.id or ""
        self._call(Call(self._search, TOOL_SEARCH, _json(call.arguments), item_id=call.id))

    def _result(
        self,
        call_id: str | None,
        parts: Sequence[ResultPart],
        at: str,
        *,
        name: str | None = None,
        is_error: bool | None = None,
    ) -> None:
        called = self._name_of(call_id or "")
        if called is None and call_id is not None and self._pairing:
            raise Invalid(
                f"No tool call found for function call output with call_id {call_id}.",
                param=at,
                code="invalid_value",
            )
        if self._parts:
            self.close()
        self._results.append(
            Result(call_id or "", list(parts), is_error=is_error, name=called or name)
        )

    def _call_output(self, output: wire.CallOutput, at: str) -> None:
        name = ToolName("function", output.name, output.namespace).rendered if output.name else None
        self._result(output.call_id, content.parts(output.output, f"{at}.output"), at, name=name)

    def _local_shell_output(self, output: wire.CallOutput, at: str) -> None:
        call_id = output.call_id or output.id
        if output.call_id is None and output.id not in self._calls:
            # In the native API `id` repeats the call's `call_id`; some clients send the item's own
            # id.
            call_id = self._shells.get(output.id or "", output.id)
        self._result(call_id, content.parts(output.output, f"{at}.output"), at)

    def _shell_output(self, output: wire.ShellOutput, at: str) -> None:
        self._result(output.call_id, [Text(_chunk(chunk)) for chunk in output.output], at)

    def _patch_output(self, output: wire.PatchOutput, at: str) -> None:
        failed = output.status == "failed"
        text = output.output or (
            "The patch could not be applied." if failed else "The patch was applied."
        )
        self._result(output.call_id, [Text(text)], at, is_error=True if failed else None)

    def _computer_output(self, output: wire.ComputerOutput, at: str) -> None:
        self.close()
        screen = (
            content.image(output.output, f"{at}.output")
            if output.output.image_url
            else Media("image")
        )
        self.messages.append(Message("user", [screen]))

    def _search_output(self, output: wire.MoreTools, at: str) -> None:
        call_id = output.call_id or self._search
        if output.execution == "server" or call_id is None:
            self._tools.add(output.tools, f"{at}.tools")
            return
        names = self._tools.add(output.tools, f"{at}.tools", from_search=True)
        parts: list[ResultPart] = [ToolReference(name) for name in names]
        self._result(call_id, parts or [Text("No tools were found.")], at)

    def _additional_tools(self, item: wire.MoreTools, at: str) -> None:
        self._tools.add(item.tools, f"{at}.tools")

    def _configuration(self, update: wire.ConfigurationUpdate, at: str) -> None:
        self.reasoning = update.reasoning if is_set(update.reasoning) else self.reasoning
        self.text = update.text if is_set(update.text) else self.text

    def _compaction(self, item: wire.CompactionItem, at: str) -> None:
        summary = (
            open_summary(self._sealer, item.encrypted_content) if self._sealer is not None else None
        )
        if summary is None:
            raise Invalid(
                "The encrypted content of this compaction item could not be verified.",
                param=f"{at}.encrypted_content",
                code="invalid_encrypted_content",
            )
        self.close()
        self.messages.append(Message("user", [Text(COMPACTED + summary)]))


_READERS: dict[str, tuple[type[Any], Callable[[ItemReader, Any, str], None]]] = {
    MESSAGE: (wire.Message, ItemReader._message),
    "reasoning": (wire.ReasoningItem, ItemReader._reasoning),
    "function_call": (wire.FunctionCall, ItemReader._function_call),
    "function_call_output": (wire.CallOutput, ItemReader._call_output),
    "custom_tool_call": (wire.CustomCall, ItemReader._custom_call),
    "custom_tool_call_output": (wire.CallOutput, ItemReader._call_output),
    "local_shell_call": (wire.ShellCall, ItemReader._local_shell_call),
    "local_shell_call_output": (wire.CallOutput, ItemReader._local_shell_output),
    "shell_call": (wire.ShellCall, ItemReader._shell_call),
    "shell_call_output": (wire.ShellOutput, ItemReader._shell_output),
    "apply_patch_call": (wire.PatchCall, ItemReader._patch_call),
    "apply_patch_call_output": (wire.PatchOutput, ItemReader._patch_output),
    "computer_call_output": (wire.ComputerOutput, ItemReader._computer_output),
    "tool_search_call": (wire.SearchCall, ItemReader._search_call),
    "tool_search_output": (wire.MoreTools, ItemReader._search_output),
    "additional_tools": (wire.MoreTools, ItemReader._additional_tools),
    "configuration_update": (wire.ConfigurationUpdate, ItemReader._configuration),
    "compaction": (wire.CompactionItem, ItemReader._compaction),
}


def _json(raw: Raw) -> str:
    """JSON as the client spelled it."""
    return bytes(raw).decode()


def _chunk(chunk: wire.ShellChunk) -> str:
    outcome = chunk.outcome or {}
    lines = [part.rstrip("\n") for part in (chunk.stdout, chunk.stderr) if part]
    if outcome.get("type") == "timeout":
        lines.append("[timed out]")
    elif outcome.get("exit_code"):
        lines.append(f"[exit code {outcome['exit_code']}]")
    return "\n".join(lines)


def _carried_results(blob: str | None) -> list[HostedResult] | None:
    """The results in the `encrypted_content` of reasoning; None where it is something else."""
    data = unpack(blob)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=list[HostedResult])
    except (msgspec.DecodeError, RecursionError):
        return []
