"""Input items as turns (apis.md B.3): order kept, what the model said in one go is one turn, results by their calls.

Items that the model made (reasoning, messages, calls) and that follow each other are one turn with many parts. Agents
put all results behind all calls; results that stand together are one turn, in the order of their calls, since many
templates tell them apart by nothing else. Ids of items never reach a prompt.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from schemas.conversation import Call, Media, Part, Reasoning, Result, ResultPart, Text, ToolReference, Turn
from schemas.errors import Invalid
from services.frontend.dialects.responses import content, wire
from services.frontend.dialects.responses.hosted import SILENT, SPOKEN, hosted_text
from services.frontend.dialects.responses.names import Named
from services.frontend.dialects.responses.request import MESSAGE
from services.frontend.dialects.responses.tools import TOOL_SEARCH, Offered
from services.frontend.dialects.responses.vault import Vault, open_summary
from services.frontend.dialects.responses.wording import convert

T = TypeVar("T")

COMPACTED = "The conversation before this point was compacted. Summary of it:\n\n"
"""Goes before a summary that comes back in a compaction item."""
_NOTHING_FOUND = "No tools were found."

_DECODERS: dict[type, Any] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (
        wire.Message,
        wire.ReasoningItem,
        wire.FunctionCall,
        wire.CustomCall,
        wire.CallOutput,
        wire.LocalShellCall,
        wire.LocalShellOutput,
        wire.ShellCall,
        wire.ShellOutput,
        wire.PatchCall,
        wire.PatchOutput,
        wire.SearchCall,
        wire.SearchOutput,
        wire.AdditionalTools,
        wire.ConfigurationUpdate,
        wire.CompactionItem,
        wire.ComputerOutput,
    )
}


class History:
    """The turns of a request, and what its items say of tools and settings."""

    def __init__(self, offered: Offered, vault: Vault | None, *, pairing: bool) -> None:
        self.turns: list[Turn] = []
        self.notes: list[str] = []
        self.reasoning: Raw = wire.NULL
        self.text: Raw = wire.NULL
        self._offered = offered
        self._vault = vault
        self._pairing = pairing
        self._said: list[Part] = []
        self._results: list[Result] = []
        self._calls: dict[str, tuple[int, str]] = {}
        self._search: str | None = None
        self._shells: dict[str, str] = {}
        """Call ids of local shell calls by the ids of their items."""

    def read(self, items: Sequence[Raw], kinds: Sequence[wire.Kind], place: str) -> None:
        """Takes items. Raises Invalid."""
        for index, (item, kind) in enumerate(zip(items, kinds, strict=True)):
            self._item(kind.type or MESSAGE, item, f"{place}[{index}]")

    def close(self) -> None:
        """Call it after the last item."""
        if self._said:
            self.turns.append(Turn("assistant", self._said))
            self._said = []
        if self._results:
            last = len(self._calls)
            self._results.sort(key=lambda result: self._calls.get(result.call_id, (last, ""))[0])
            self.turns.append(Turn("tool", list(self._results)))
            self._results = []

    def _item(self, kind: str, item: Raw, at: str) -> None:
        match kind:
            case "message":
                self._message(_read(wire.Message, item, at), at)
            case "reasoning":
                self._say(self._thought(_read(wire.ReasoningItem, item, at)))
            case "function_call":
                call = _read(wire.FunctionCall, item, at)
                self._call(Call(call.call_id, call.name, call.arguments, "function", call.namespace, call.id))
            case "custom_tool_call":
                self._custom(_read(wire.CustomCall, item, at))
            case "function_call_output" | "custom_tool_call_output":
                output = _read(wire.CallOutput, item, at)
                told = Named("function", output.name, output.namespace).told if output.name else None
                self._result(output.call_id, content.parts(output.output, f"{at}.output"), at, name=told)
            case "local_shell_call":
                self._shell(_read(wire.LocalShellCall, item, at))
            case "shell_call":
                shell = _read(wire.ShellCall, item, at)
                self._call(Call(shell.call_id, "shell", _text(shell.action), item_id=shell.id))
            case "apply_patch_call":
                patch = _read(wire.PatchCall, item, at)
                self._call(Call(patch.call_id, "apply_patch", _text(patch.operation), item_id=patch.id))
            case "local_shell_call_output" | "shell_call_output" | "apply_patch_call_output" | "computer_call_output":
                self._built_in_output(kind, item, at)
            case "tool_search_call" | "tool_search_output":
                self._tool_search(kind, item, at)
            case "additional_tools":
                self._offered.add(_read(wire.AdditionalTools, item, at).tools, f"{at}.tools")
            case "configuration_update":
                update = _read(wire.ConfigurationUpdate, item, at)
                self.reasoning = update.reasoning if bytes(update.reasoning) != b"null" else self.reasoning
                self.text = update.text if bytes(update.text) != b"null" else self.text
            case "compaction":
                self._compaction(_read(wire.CompactionItem, item, at), at)
            case _:
                self._other(kind, item)

    def _message(self, message: wire.Message, at: str) -> None:
        said = content.parts(message.content, f"{at}.content")
        if message.role == "assistant":
            self._say(*said)
            return
        self.close()
        if said or message.role == "user":
            self.turns.append(Turn(message.role, [*said]))

    def _say(self, *parts: Part | None) -> None:
        if self._results:
            self.close()
        self._said += [part for part in parts if part is not None]

    def _thought(self, item: wire.ReasoningItem) -> Reasoning | None:
        """Its text, else its seal, else its summary: the summary stands in for a seal that is not ours, too. One that
        says the same as the text, as ours do, goes no further."""
        text = "".join(part.text for part in item.content or ()) or None
        summary = [part.text for part in item.summary or () if part.text]
        seal = item.encrypted_content or None
        if text is None and summary:
            opened = self._vault.open(seal) if seal is not None and self._vault is not None else None
            if opened is not None or seal is None or self._vault is not None:
                text = opened or "\n\n".join(summary)
        if text is None and seal is None:
            return None
        if text is not None and text == "\n\n".join(summary):
            summary = []
        return Reasoning(text, seal, summary, item.id)

    def _call(self, call: Call) -> None:
        self._say(call)
        told = Named("function", call.name, call.namespace).told
        self._calls[call.call_id] = (len(self._calls), told)

    def _custom(self, call: wire.CustomCall) -> None:
        arguments = msgspec.json.encode({"input": call.input}).decode()
        self._call(Call(call.call_id, call.name, arguments, "custom", call.namespace, call.id))

    def _shell(self, call: wire.LocalShellCall) -> None:
        action = convert(_object, call.action, "action")
        action.pop("type", None)
        if call.id is not None:
            self._shells[call.id] = call.call_id
        self._call(Call(call.call_id, "local_shell", msgspec.json.encode(action).decode(), item_id=call.id))

    def _result(
        self,
        call_id: str | None,
        parts: Sequence[ResultPart],
        at: str,
        *,
        name: str | None = None,
        is_error: bool | None = None,
    ) -> None:
        _, called = self._calls.get(call_id or "", (0, None))
        if called is None and call_id is not None and self._pairing:
            raise Invalid(
                f"No tool call found for function call output with call_id {call_id}.", param=at, code="invalid_value"
            )
        if self._said:
            self.close()
        self._results.append(Result(call_id or "", list(parts), is_error=is_error, name=called or name))

    def _built_in_output(self, kind: str, item: Raw, at: str) -> None:
        if kind == "local_shell_call_output":
            local = _read(wire.LocalShellOutput, item, at)
            self._result(self._local_shell_id(local), content.parts(local.output, f"{at}.output"), at)
        elif kind == "shell_call_output":
            shell = _read(wire.ShellOutput, item, at)
            self._result(shell.call_id, [Text(_chunk(chunk)) for chunk in shell.output], at)
        elif kind == "apply_patch_call_output":
            patch = _read(wire.PatchOutput, item, at)
            failed = patch.status == "failed"
            said = patch.output or ("The patch could not be applied." if failed else "The patch was applied.")
            self._result(patch.call_id, [Text(said)], at, is_error=True if failed else None)
        else:
            seen = _read(wire.ComputerOutput, item, at)
            self.close()
            shown = content.image(seen.output, f"{at}.output") if seen.output.image_url else Media("image")
            self.turns.append(Turn("user", [shown]))

    def _local_shell_id(self, output: wire.LocalShellOutput) -> str | None:
        """Natively `id` repeats the call's `call_id`; there are clients that send the item's own id."""
        if output.call_id is not None or output.id in self._calls:
            return output.call_id or output.id
        return self._shells.get(output.id or "", output.id)

    def _tool_search(self, kind: str, item: Raw, at: str) -> None:
        if kind == "tool_search_call":
            call = _read(wire.SearchCall, item, at)
            if call.execution == "server" or (call.call_id is None and call.id is None):
                return
            self._search = call.call_id or call.id or ""
            self._call(Call(self._search, TOOL_SEARCH, _text(call.arguments), item_id=call.id))
            return
        found = _read(wire.SearchOutput, item, at)
        call_id = found.call_id or self._search
        if found.execution == "server" or call_id is None:
            self._offered.add(found.tools, f"{at}.tools")
            return
        told = self._offered.add(found.tools, f"{at}.tools", deferred=True)
        parts: list[ResultPart] = [ToolReference(name) for name in told]
        self._result(call_id, parts or [Text(_NOTHING_FOUND)], at)

    def _compaction(self, item: wire.CompactionItem, at: str) -> None:
        summary = open_summary(self._vault, item.encrypted_content) if self._vault is not None else None
        if summary is None:
            raise Invalid(
                "The encrypted content of this compaction item could not be verified.",
                param=f"{at}.encrypted_content",
                code="invalid_encrypted_content",
            )
        self.close()
        self.turns.append(Turn("user", [Text(COMPACTED + summary)]))

    def _other(self, kind: str, item: Raw) -> None:
        if kind in SPOKEN:
            self._say(Text(hosted_text(kind, item)))
        elif kind not in SILENT:
            self.notes.append(kind)


_object = msgspec.json.Decoder(dict[str, Any])


def _read(kind: type[T], item: Raw, at: str) -> T:
    found: T = convert(_DECODERS[kind], item, at)
    return found


def _text(raw: Raw) -> str:
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
