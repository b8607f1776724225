"""Converts `messages` of a request to those of the conversation, in their order.

Ids are checked only where the prompt would be wrong: a result without its call, and two calls with
one id in one message. Calls without results are accepted, since an interrupted agent sends them.
The API defines no order within an assistant's message. It becomes reasoning, text, calls, unless
the reasoning names its place.

Reasoning is taken from the first of these fields that has any; the others repeat it:

    reasoning_details[]   OpenRouter's; ours (`format` of `DETAILS`) hold seals and the call that
                          follows each
    thinking_blocks[]     LiteLLM's: Messages' blocks with their signatures
    reasoning_content     a string (most servers), or Dynamo's segments: one before each call, one
                          after the last
    reasoning, reasoning_text
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from schemas.conversation import Call, Media, Message, Part, Reasoning, Result, Role, Text
from schemas.errors import Invalid
from services.frontend.apis.chat import wire
from services.frontend.apis.chat.content import content_parts, thinking_text
from services.frontend.apis.shared.content import CallHistory
from services.frontend.apis.shared.decode import objects
from services.frontend.apis.shared.openai.wording import missing_parameter, unsupported

DETAILS = "turnwire-v1"
"""`format` of details that this server makes."""
_UNSAFE = re.compile(r"[^A-Za-z0-9]")


class Thought(Struct, frozen=True):
    """Reasoning, and the index of the call that follows it in the message; None: the reasoning
    follows the last call."""

    reasoning: Reasoning
    call: int | None = 0


class ChatHistoryReader(CallHistory):
    """Reads the messages of a request."""

    def __init__(self, *, pairing: bool = True) -> None:
        super().__init__(pairing=pairing)
        self._legacy_ids: dict[str, str] = {}
        self._answered: dict[str, str] = {}
        """The place of the result of each call that has one, by the id of the call."""

    def read(self, messages: list[wire.ChatMessage]) -> None:
        """Reads all messages. Raises Invalid."""
        results: list[Result] = []
        for index, message in enumerate(messages):
            field_path = f"messages[{index}]"
            if message.role in ("tool", "function"):
                result = self._result(message, field_path)
                if message.role == "tool":
                    self._check_first(result, field_path)
                results.append(result)
                continue
            if results:
                self._add_results(results)
                results = []
            self._add_message(message, field_path)
        if results:
            self._add_results(results)

    def _add_message(self, message: wire.ChatMessage, field_path: str) -> None:
        if message.role == "assistant":
            parts = self._assistant_parts(message, field_path)
            if parts:
                self.messages.append(Message("assistant", parts, message.name))
            return
        if message.content is None:
            raise missing_parameter(f"{field_path}.content")
        parts = [*content_parts(message.content, f"{field_path}.content")]
        if message.role == "user":
            self.messages.append(Message("user", parts, message.name))
        elif parts:
            role: Role = "developer" if message.role == "developer" else "system"
            self.messages.append(Message(role, parts, message.name))

    def _assistant_parts(self, message: wire.ChatMessage, field_path: str) -> list[Part]:
        if message.audio is not None:
            raise unsupported(
                f"{field_path}.audio",
                "names audio that is stored at OpenAI; send its transcript as content",
            )
        calls = self._calls_of(message, field_path)
        content: list[Part] = [*content_parts(message.content, f"{field_path}.content")]
        if message.refusal and not content:
            content = [Text(message.refusal)]
        return _merge_parts(thoughts(message, [call.call_id for call in calls]), content, calls)

    def _calls_of(self, message: wire.ChatMessage, field_path: str) -> list[Call]:
        calls: list[Call] = []
        ids: set[str] = set()
        for index, tool_call in enumerate(message.tool_calls or []):
            call_path = f"{field_path}.tool_calls[{index}]"
            if self._pairing and tool_call.id in ids:
                raise Invalid(
                    f"Duplicate value for '{call_path}.id': '{tool_call.id}'.",
                    param=f"{call_path}.id",
                )
            ids.add(tool_call.id)
            calls.append(_call(tool_call, call_path))
        if message.function_call is not None and not calls:
            # Such a call has no id, and a message has only one: the position serves as id.
            call_id = f"function_call_{len(self.messages)}"
            self._legacy_ids[message.function_call.name] = call_id
            arguments = _arguments(message.function_call.arguments, f"{field_path}.function_call")
            calls.append(Call(call_id, message.function_call.name, arguments))
        for call in calls:
            self._add_call(call)
            self._answered.pop(call.call_id, None)
        return calls

    def _result(self, message: wire.ChatMessage, field_path: str) -> Result:
        call_id = message.tool_call_id
        if message.role == "function":
            if message.name is None:
                raise missing_parameter(f"{field_path}.name")
            call_id = self._legacy_ids.get(message.name)
        elif call_id is None:
            raise missing_parameter(f"{field_path}.tool_call_id")
        name = self._name_of(call_id or "")
        if name is None and self._pairing:
            raise Invalid(
                f"Invalid parameter: messages with role '{message.role}' must be a response to a "
                "preceding message with 'tool_calls'.",
                param=f"{field_path}.role",
            )
        content = content_parts(message.content, f"{field_path}.content")
        parts = [part for part in content if isinstance(part, Text | Media)]
        return Result(call_id or "", [*parts], name=name or message.name)

    def _check_first(self, result: Result, field_path: str) -> None:
        """Raises Invalid for the second result of a call: which one is true is not certain."""
        call_id = result.call_id
        if call_id in self._answered and self._pairing:
            raise Invalid(
                f"Invalid parameter: Duplicate value for 'tool_call_id' of '{call_id}', in "
                f"{self._answered[call_id]} and {field_path}.",
                param=f"{field_path}.tool_call_id",
            )
        self._answered[call_id] = field_path


def _call(tool_call: wire.ToolCall, field_path: str) -> Call:
    if tool_call.custom is not None:
        wrapped = msgspec.json.encode({"input": tool_call.custom.input}).decode()
        return Call(tool_call.id, tool_call.custom.name, wrapped, kind="custom")
    if tool_call.function is None:
        raise missing_parameter(f"{field_path}.{tool_call.type or 'function'}")
    arguments = _arguments(tool_call.function.arguments, f"{field_path}.function")
    return Call(tool_call.id, tool_call.function.name, arguments)


def _arguments(raw: Raw, field_path: str) -> str:
    """The JSON text of the arguments: the content of a string, or any other value as it is."""
    text = bytes(raw)
    if text == b"null":
        return ""
    try:
        return msgspec.json.decode(text, type=str) if text.startswith(b'"') else text.decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(
            f"Invalid '{field_path}.arguments': {error}", param=f"{field_path}.arguments"
        ) from None


def _merge_parts(thought: Sequence[Thought], content: list[Part], calls: list[Call]) -> list[Part]:
    if not calls:
        return [*(item.reasoning for item in thought), *content]
    before: dict[int | None, list[Reasoning]] = {}
    for item in thought:
        before.setdefault(item.call, []).append(item.reasoning)
    parts: list[Part] = [*before.pop(0, ()), *content]
    for index, call in enumerate(calls):
        parts += [*before.get(index, ()), call]
    return [*parts, *before.get(None, ())]


def thoughts(message: wire.ChatMessage, call_ids: Sequence[str]) -> list[Thought]:
    """The reasoning of an assistant's message, in order. Values in unknown forms are left out."""
    details = [*objects(message.reasoning_details)]
    reasoning: list[Thought] = []
    if details:
        reasoning = _our_details(details, call_ids) or _details(details)
    reasoning = reasoning or _blocks(message.thinking_blocks)
    return reasoning or _text(message, len(call_ids))


def _our_details(details: list[dict[str, Any]], call_ids: Sequence[str]) -> list[Thought]:
    # Clients change call ids (OpenClaw removes the underscores), but return the details unchanged.
    call_indices = {
        _UNSAFE.sub("", call_id): call_index for call_index, call_id in enumerate(call_ids)
    }
    collected: list[Thought] = []
    for detail in details:
        seal = _text_of(detail, "data")
        if detail.get("format") != DETAILS or seal is None:
            continue
        call_index: int | None = 0
        if call_ids:
            call_index = call_indices.get(_UNSAFE.sub("", str(detail.get("id"))))
        collected.append(Thought(Reasoning(None, seal), call_index))
    return collected


def _details(details: list[dict[str, Any]]) -> list[Thought]:
    collected: list[Thought] = []
    for detail in details:
        text = _text_of(detail, "text")
        summary = _text_of(detail, "summary")
        if detail.get("format") != DETAILS and (text or summary):
            collected.append(
                Thought(Reasoning(text, _seal_of(detail), [summary] if summary else []))
            )
    return collected if any(thought.reasoning.text for thought in collected) else []


def _blocks(blocks: Any) -> list[Thought]:
    collected: list[Thought] = []
    for block in objects(blocks):
        text = _text_of(block, "thinking")
        seal = _seal_of(block)
        if text or seal:
            collected.append(Thought(Reasoning(text, seal)))
    return collected


def _seal_of(holder: dict[str, Any]) -> str | None:
    return _text_of(holder, "signature") or _text_of(holder, "data")


def _text(message: wire.ChatMessage, calls: int) -> list[Thought]:
    segments = message.reasoning_content
    if isinstance(segments, list) and calls and len(segments) == calls + 1:
        call_indices = [*range(calls), None]
        return [
            Thought(Reasoning(segment), call_index)
            for segment, call_index in zip(segments, call_indices, strict=True)
            if isinstance(segment, str) and segment
        ]
    for value in (segments, message.reasoning, message.reasoning_text, message.reasoning_details):
        text = thinking_text(value)
        if text:
            return [Thought(Reasoning(text))]
    return []


def _text_of(holder: dict[str, Any], name: str) -> str | None:
    value = holder.get(name)
    return value if isinstance(value, str) and value else None
