"""`messages` as turns: order kept, results before the user's text of the same message, instructions in their place.

Results of one message are in the order of their calls, since many templates tell them apart by nothing else.
Consecutive messages of one role stay separate turns; the template decides whether to join them. Ids are checked only
where the prompt would be wrong: a result without its call, and two calls of one id in one message. All else that the
native API refuses (calls without results, text before results) is accepted, since an interrupted agent sends it.

Of `context_management`, `clear_thinking_20251015` is applied. The other edits (`clear_tool_uses_20250919`,
`compact_20260112`) start at a number of tokens, and the answer must contain how many they cleared; no API counts tokens
here, so they are accepted and ignored, and `applied_edits` of the answer is empty.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from schemas.conversation import Call, Media, Part, Reasoning, Result, Text, ToolSpec, Turn
from schemas.errors import Invalid
from services.frontend.apis.messages import wire
from services.frontend.apis.messages.content import hosted_text, plain_parts, raw_text, result_parts
from services.frontend.apis.messages.tools import ToolSet

_ASSISTANT_ONLY = (wire.ThinkingBlock, wire.RedactedThinkingBlock, wire.ToolUseBlock)
CLEAR_THINKING = "clear_thinking_20251015"
_DEFAULT_TURNS = 1


class History:
    """The turns of a request, and the changes that its messages make to its tools and effort."""

    def __init__(self, specs: list[ToolSpec], *, pairing: bool) -> None:
        self.turns: list[Turn] = []
        self.tools = ToolSet(specs)
        self.effort: str | None = None
        self._pairing = pairing
        self._names: dict[str, str] = {}
        self._places: dict[str, int] = {}
        """By call id: position among all calls of the conversation; of equal ids the last."""
        self._made = 0

    def read(self, messages: list[wire.Message]) -> None:
        """Reads all messages. Raises Invalid."""
        last_user = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
        for index, message in enumerate(messages):
            if message.role == "system":
                self._system(message, f"messages.{index}", cleared=index < last_user)
                continue
            blocks = _blocks(message, f"messages.{index}")
            if message.role == "user":
                self._user(blocks, f"messages.{index}")
            else:
                self._assistant(blocks, f"messages.{index}")

    def _system(self, message: wire.Message, path: str, *, cleared: bool) -> None:
        if message.output_config is not None and message.output_config.effort is not None:
            self.effort = message.output_config.effort
        if message.content is None and message.output_config is not None:
            return
        over = cleared and message.clear_at == "next_user_message"
        parts: list[Part] = []
        for index, block in enumerate(_blocks(message, path)):
            if isinstance(block, wire.TextBlock):
                parts += [] if over else plain_parts(block, path) or []
            elif isinstance(block, wire.ToolAdditionBlock | wire.ToolRemovalBlock):
                parts += self.tools.change(block, f"{path}.content.{index}")
            else:
                tag = block.__struct_config__.tag
                raise Invalid(f"{path}.content.{index}: `{tag}` blocks are not allowed in `system` messages")
        if parts:
            self.turns.append(Turn("system", parts))

    def _user(self, blocks: Sequence[wire.Block], path: str) -> None:
        results: list[Result] = []
        parts: list[Part] = []
        for index, block in enumerate(blocks):
            place = f"{path}.content.{index}"
            if isinstance(block, wire.ToolResultBlock):
                results.append(self._result(block, place))
            elif isinstance(block, _ASSISTANT_ONLY):
                tag = block.__struct_config__.tag
                raise Invalid(f"{path}: `{tag}` blocks can only be in `assistant` messages")
            else:
                parts += _shared_parts(block, place)
        if results:
            results.sort(key=lambda result: self._places.get(result.call_id, self._made))
            self.turns.append(Turn("tool", [*results]))
        if parts or not results:
            self.turns.append(Turn("user", parts))

    def _assistant(self, blocks: Sequence[wire.Block], path: str) -> None:
        parts: list[Part] = []
        ids: set[str] = set()
        for index, block in enumerate(blocks):
            place = f"{path}.content.{index}"
            if isinstance(block, wire.ToolUseBlock):
                if self._pairing and block.id in ids:
                    raise Invalid(f"{place}: `tool_use` ids must be unique", param=f"{place}.id")
                ids.add(block.id)
                parts.append(self._call(block, place))
            elif isinstance(block, wire.ToolResultBlock):
                raise Invalid(f"{path}: `tool_result` blocks can only be in `user` messages")
            elif isinstance(block, wire.CompactionBlock):
                self._compact(block, place)
                parts.clear()
            else:
                parts += _assistant_parts(block, place)
        if parts:
            self.turns.append(Turn("assistant", parts))

    def _call(self, block: wire.ToolUseBlock, path: str) -> Call:
        arguments = raw_text(block.input)
        if not arguments.startswith("{"):
            raise Invalid(f"{path}.tool_use.input: Input should be a valid dictionary", param=f"{path}.input")
        self._names[block.id] = block.name
        self._places[block.id] = self._made
        self._made += 1
        return Call(block.id, block.name, arguments)

    def _result(self, block: wire.ToolResultBlock, path: str) -> Result:
        name = self._names.get(block.tool_use_id)
        if name is None and self._pairing:
            raise Invalid(
                f"{path}: unexpected `tool_use_id` found in `tool_result` blocks: {block.tool_use_id}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message.",
                param=f"{path}.tool_use_id",
            )
        return Result(block.tool_use_id, result_parts(block.content, path), is_error=block.is_error, name=name)

    def _compact(self, block: wire.CompactionBlock, path: str) -> None:
        if not block.content:
            return
        self.turns = [Turn("user", [Text(block.content)])]
        self.tools.compact(block.tool_changes or [], path)


def _blocks(message: wire.Message, path: str) -> Sequence[wire.Block]:
    if message.content is None:
        raise Invalid(f"{path}.content: Field required", param=f"{path}.content")
    if isinstance(message.content, str):
        return [wire.TextBlock(message.content)]
    return message.content


def _assistant_parts(block: wire.Block, path: str) -> Sequence[Part]:
    if isinstance(block, wire.ThinkingBlock):
        seal = block.signature if block.signature not in ("", wire.UNSEALED) else None
        return [Reasoning(block.thinking or None, seal)]
    if isinstance(block, wire.RedactedThinkingBlock):
        return [Reasoning(None, block.data)]
    return _shared_parts(block, path)


def _shared_parts(block: wire.Block, path: str) -> Sequence[Text | Media]:
    plain = plain_parts(block, path)
    if plain is not None:
        return plain
    if isinstance(block, wire.HostedUse | wire.HostedResult):
        return [Text(hosted_text(block))]
    if isinstance(block, wire.FallbackBlock | wire.CompactionBlock):
        return []
    if isinstance(block, wire.ContainerUploadBlock):
        raise Invalid(f"{path}: container uploads are not supported by this server")
    raise Invalid(f"{path}: `{block.__struct_config__.tag}` blocks can only be in `system` messages")


def thinking_turns(given: wire.ContextManagement | None) -> int | str | None:
    """How many of the last turns keep their thinking, or `all`; None if unspecified. Raises Invalid."""
    edits = (given.edits if given else None) or []
    kept = [edit.keep for edit in edits if edit.type == CLEAR_THINKING]
    return _kept(kept[-1]) if kept else None


def forget_thinking(turns: list[Turn], kept: int) -> list[Turn]:
    """The turns, with thinking only in the last `kept` turns of the assistant that have any.

    A tool loop, from one message of the user to the next, counts as one turn.
    """
    out: list[Turn] = []
    seen, thought = 0, False
    for turn in reversed(turns):
        if turn.role == "user":
            thought = False
        if turn.role != "assistant" or not any(isinstance(part, Reasoning) for part in turn.parts):
            out.append(turn)
            continue
        if not thought:
            seen, thought = seen + 1, True
        if seen <= kept:
            out.append(turn)
            continue
        parts = [part for part in turn.parts if not isinstance(part, Reasoning)]
        if parts:
            out.append(msgspec.structs.replace(turn, parts=parts))
    return out[::-1]


def _kept(keep: Any) -> int | str:
    if keep is None:
        return _DEFAULT_TURNS
    if keep == "all" or (isinstance(keep, dict) and keep.get("type") == "all"):
        return "all"
    value = keep.get("value") if isinstance(keep, dict) and keep.get("type") == "thinking_turns" else None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        place = f"context_management.edits.{CLEAR_THINKING}.keep"
        raise Invalid(f"{place}: Input should be 'all' or a number of `thinking_turns` from 1", param=place)
    return value
