"""`messages` as turns: order kept, instructions in their place, reasoning before what it led to.

Results that follow each other stand in the order of their calls, since many templates tell them apart by nothing else.
Ids are checked only as far as a prompt can be wrong: a result of a call that is not there, and two calls of one id in
one message. Calls without results are taken as they are, since an interrupted agent sends them. Within an assistant's
message the API has no order; it is reasoning, text, calls, unless the reasoning itself says otherwise.
"""

from collections.abc import Sequence
from itertools import groupby

import msgspec
from msgspec import Raw

from schemas.conversation import Call, Media, Part, Reasoning, Result, Role, Text, Turn
from schemas.errors import Invalid
from services.frontend.dialects.chat import wire
from services.frontend.dialects.chat.content import content_parts
from services.frontend.dialects.chat.reasoning import Thought, thoughts
from services.frontend.dialects.openai_wording import missing_parameter


class History:
    """The turns of a request."""

    def __init__(self, *, pairing: bool = True) -> None:
        self.turns: list[Turn] = []
        self._pairing = pairing
        self._names: dict[str, str] = {}
        self._places: dict[str, int] = {}
        """By call id: which call of the conversation it is, the last one of that id."""
        self._made = 0
        self._legacy_ids: dict[str, str] = {}

    def read(self, messages: list[wire.Message]) -> None:
        """Takes all messages. Raises Invalid."""
        for role, run in groupby(enumerate(messages), key=lambda pair: _kind(pair[1])):
            if role == "tool":
                results = [self._result(message, f"messages[{index}]") for index, message in run]
                results.sort(key=lambda result: self._places.get(result.call_id, self._made))
                self.turns.append(Turn("tool", [*results]))
            else:
                for index, message in run:
                    self._message(message, f"messages[{index}]")

    def _message(self, message: wire.Message, path: str) -> None:
        if message.role == "assistant":
            parts = self._assistant(message, path)
            if parts:
                self.turns.append(Turn("assistant", parts, message.name))
            return
        if message.content is None:
            raise missing_parameter(f"{path}.content")
        parts = [*content_parts(message.content, f"{path}.content")]
        if message.role == "user":
            self.turns.append(Turn("user", parts, message.name))
        elif parts:
            role: Role = "developer" if message.role == "developer" else "system"
            self.turns.append(Turn(role, parts, message.name))

    def _assistant(self, message: wire.Message, path: str) -> list[Part]:
        calls = self._calls(message, path)
        said: list[Part] = [*content_parts(message.content, f"{path}.content")]
        if message.refusal and not said:
            said = [Text(message.refusal)]
        return _ordered(thoughts(message, [call.call_id for call in calls]), said, calls)

    def _calls(self, message: wire.Message, path: str) -> list[Call]:
        calls: list[Call] = []
        for index, given in enumerate(message.tool_calls or []):
            place = f"{path}.tool_calls[{index}]"
            if self._pairing and any(call.call_id == given.id for call in calls):
                raise Invalid(f"Duplicate value for '{place}.id': '{given.id}'.", param=f"{place}.id")
            calls.append(_call(given, place))
        if message.function_call is not None and not calls:
            # Such a call has no id; a message has only one, so its place will do.
            call_id = f"function_call_{len(self.turns)}"
            self._legacy_ids[message.function_call.name] = call_id
            arguments = _arguments(message.function_call.arguments, f"{path}.function_call")
            calls.append(Call(call_id, message.function_call.name, arguments))
        for call in calls:
            self._names[call.call_id] = call.name
            self._places[call.call_id] = self._made
            self._made += 1
        return calls

    def _result(self, message: wire.Message, path: str) -> Result:
        call_id = message.tool_call_id
        if message.role == "function":
            if message.name is None:
                raise missing_parameter(f"{path}.name")
            call_id = self._legacy_ids.get(message.name)
        elif call_id is None:
            raise missing_parameter(f"{path}.tool_call_id")
        name = self._names.get(call_id or "")
        if name is None and self._pairing:
            raise Invalid(
                f"Invalid parameter: messages with role '{message.role}' must be a response to a preceding message "
                "with 'tool_calls'.",
                param=f"{path}.role",
            )
        content = content_parts(message.content, f"{path}.content")
        parts = [part for part in content if isinstance(part, Text | Media)]
        return Result(call_id or "", [*parts], name=name or message.name)


def _kind(message: wire.Message) -> str:
    return "tool" if message.role in ("tool", "function") else "said"


def _call(given: wire.ToolCall, path: str) -> Call:
    if given.custom is not None:
        wrapped = msgspec.json.encode({"input": given.custom.input}).decode()
        return Call(given.id, given.custom.name, wrapped, kind="custom")
    if given.function is None:
        raise missing_parameter(f"{path}.{given.type or 'function'}")
    return Call(given.id, given.function.name, _arguments(given.function.arguments, f"{path}.function"))


def _arguments(raw: Raw, path: str) -> str:
    """The JSON text in the string, or of what stands there instead of one."""
    text = bytes(raw)
    if text == b"null":
        return ""
    try:
        return msgspec.json.decode(text, type=str) if text.startswith(b'"') else text.decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"Invalid '{path}.arguments': {error}", param=f"{path}.arguments") from None


def _ordered(thought: Sequence[Thought], said: list[Part], calls: list[Call]) -> list[Part]:
    def before(call: int | None) -> list[Reasoning]:
        return [item.reasoning for item in thought if item.call == call]

    if not calls:
        return [*(item.reasoning for item in thought), *said]
    parts: list[Part] = [*before(0), *said]
    for index, call in enumerate(calls):
        parts += [*(before(index) if index else ()), call]
    return [*parts, *before(None)]
