"""Reads the input items of a request: messages, and settings and tools among them."""

from collections.abc import Sequence

from msgspec import Raw

from schemas.conversation import Media, Message, Text
from schemas.errors import Invalid
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.parse.body import MESSAGE, DecodedRequest, item_kinds
from services.frontend.apis.responses.parse.compaction import (
    COMPACTED,
    TRIGGER,
    TextSealer,
    open_summary,
)
from services.frontend.apis.responses.parse.items import content
from services.frontend.apis.responses.parse.items.calls import ToolCallReader
from services.frontend.apis.responses.parse.items.content import AS_TEXT, IGNORED, hosted_text
from services.frontend.apis.responses.parse.items.history import ItemHistory
from services.frontend.apis.responses.parse.items.reasoning import ReasoningReader
from services.frontend.apis.responses.parse.members import convert, convert_item
from services.frontend.apis.responses.parse.tools.reader import add_tools
from services.frontend.apis.responses.parse.tools.request_tools import RequestTools
from services.frontend.apis.shared.decode import tags_of
from services.frontend.apis.shared.field_types import is_set
from services.frontend.apis.shared.unknown_parts import is_unknown_question, members, part_type

_PARTS = frozenset(tags_of(wire.Part))
_SCREENSHOT = "computer_screenshot"


class ItemReader:
    """Collects the messages of a request, and the tools and settings in its items."""

    def __init__(self, tools: RequestTools, sealer: TextSealer | None, *, pairing: bool) -> None:
        """`pairing`: an output without its call is an error."""
        self.notes: list[str] = []
        """The types of items and of their parts that were left out."""
        self.compacted = False
        """An item is a compaction."""
        self.reasoning = Raw(b"null")
        self.text = Raw(b"null")
        """Settings of the last `configuration_update` that has them."""
        self._tools = tools
        self._sealer = sealer
        self._pairing = pairing
        self._left_out = 0
        """The number of items that are left out."""
        self._history = ItemHistory()
        self._calls = ToolCallReader(self._history, tools, self.notes)
        self._reasoning = ReasoningReader(self._history, tools, sealer)

    @property
    def messages(self) -> list[Message]:
        """The messages, once everything was read."""
        return self._history.messages

    def read(self, decoded: DecodedRequest, history: Sequence[Raw]) -> None:
        """Reads the items of the responses that a request continues, then its own. Raises Invalid,
        also if nothing remains of its own."""
        # Outputs of earlier requests were accepted when they came; the store gave them ids.
        self._read_items(history, item_kinds(history, "history"), "history")
        self._history.pair(self._pairing)
        self._left_out = 0
        self._read_items(decoded.items, decoded.kinds, "input")
        if decoded.items and self._left_out == len(decoded.items):
            raise _nothing_remains(decoded.kinds)
        self._history.close()

    def _read_items(
        self, items: Sequence[Raw], kinds: Sequence[wire.ItemKind], list_path: str
    ) -> None:
        for index, (item, kind) in enumerate(zip(items, kinds, strict=True)):
            field_path = f"{list_path}[{index}]"
            noted = len(self.notes)
            self._read(kind.type or MESSAGE, item, field_path)
            if len(self.notes) > noted and is_unknown_question(item, _PARTS):
                self._left_out += 1
                if index == len(items) - 1:
                    convert(wire.ResponsesMessage, item, field_path)  # which refuses it

    def _read(self, kind: str, raw: Raw, field_path: str) -> None:
        match kind:
            case "message":
                message = convert_item(wire.ResponsesMessage, raw, field_path, self.notes)
                self._add_message(message, field_path)
            case "agent_message":
                agent_message = convert_item(wire.AgentMessage, raw, field_path, self.notes)
                self._add_agent_message(agent_message, field_path)
            case "reasoning":
                reasoning = convert_item(wire.ReasoningItem, raw, field_path, self.notes)
                self._reasoning.read(reasoning, field_path)
            case (
                "function_call"
                | "custom_tool_call"
                | "shell_call"
                | "local_shell_call"
                | "apply_patch_call"
            ):
                self._calls.read_call(kind, raw, field_path)
            case (
                "function_call_output"
                | "custom_tool_call_output"
                | "shell_call_output"
                | "local_shell_call_output"
                | "apply_patch_call_output"
            ):
                self._calls.read_result(kind, raw, field_path)
            case "tool_search_call":
                self._calls.read_search(convert(wire.SearchCall, raw, field_path))
            case "tool_search_output":
                self._calls.read_found_tools(convert(wire.MoreTools, raw, field_path), field_path)
            case "additional_tools":
                added = convert(wire.MoreTools, raw, field_path).tools
                add_tools(self._tools, added, f"{field_path}.tools")
            case "configuration_update":
                self._update_settings(convert(wire.ConfigurationUpdate, raw, field_path))
            case "compaction":
                self._add_compaction(convert(wire.CompactionItem, raw, field_path), field_path)
            case _:
                self._read_foreign(kind, raw, field_path)

    def _read_foreign(self, kind: str, raw: Raw, field_path: str) -> None:
        """Reads an item of a tool that OpenAI's servers run."""
        if kind == "computer_call_output":
            self._add_screen(raw, field_path)
        elif kind == "web_search_call":
            self._history.add_search(hosted_text(kind, raw, field_path))
        elif kind in AS_TEXT:
            self._history.add(Text(hosted_text(kind, raw, field_path)))
        elif kind not in IGNORED:
            self._leave_out(kind)
        elif kind != TRIGGER:
            self._left_out += 1

    def _leave_out(self, kind: str) -> None:
        self.notes.append(kind)
        self._left_out += 1

    def _add_message(self, message: wire.ResponsesMessage, field_path: str) -> None:
        parts = content.parts(message.content, f"{field_path}.content")
        if message.role == "assistant":
            self._history.add(*parts, id=message.id)
        else:
            self._history.add_message(message.role, parts)

    def _add_agent_message(self, message: wire.AgentMessage, field_path: str) -> None:
        parts = content.agent_parts(message, field_path, self.notes)
        self._history.add_message("user", parts)

    def _update_settings(self, update: wire.ConfigurationUpdate) -> None:
        if is_set(update.reasoning):
            self.reasoning = update.reasoning
        if is_set(update.text):
            self.text = update.text

    def _add_compaction(self, item: wire.CompactionItem, field_path: str) -> None:
        self.compacted = True
        summary = open_summary(self._sealer, item, field_path)
        self._history.add_message("user", [Text(COMPACTED + summary)])

    def _add_screen(self, raw: Raw, field_path: str) -> None:
        output = part_type(members(raw).get("output", Raw(b"null")))
        if output is not None and output != _SCREENSHOT:
            self._leave_out(output)
            return
        item = convert(wire.ComputerOutput, raw, field_path)
        screen = Media("image")
        if item.output.image_url:
            screen = content.image(item.output, f"{field_path}.output")
        self._history.add_message("user", [screen])


def _nothing_remains(kinds: Sequence[wire.ItemKind]) -> Invalid:
    """The error for an input that would ask nothing."""
    types = sorted({kind.type or MESSAGE for kind in kinds})
    listed = ", ".join(f"'{name}'" for name in types)
    return Invalid(
        f"Invalid 'input': nothing of it is for the model. This server leaves out {listed}.",
        param="input",
        code="invalid_value",
    )
