"""Writes tool calls in the forms of Chat Completions: function, freeform, and the legacy one.

function    {"index":0,"id":…,"type":"function","function":{"name":…,"arguments":…}}
freeform    {"index":0,"id":…,"type":"custom","custom":{"name":…,"input":…}}
legacy      {"name":…,"arguments":…}, in `function_call`
"""

from msgspec import Raw

from schemas.events import BlockStart
from services.frontend.apis.chat import wire
from services.frontend.apis.shared.decode import is_json
from services.frontend.apis.shared.tools import FreeformInput, freeform_input


class CallWriter:
    """Writes one call of one choice, piece by piece."""

    def __init__(
        self, block: BlockStart, index: int, turn: str, *, freeform: bool, legacy: bool
    ) -> None:
        self.index = index
        self.id = block.call_id or f"call_{turn}{block.block}"
        self._name = block.name or ""
        self._legacy = legacy
        self._input = FreeformInput() if freeform else None
        self._started = False

    def opening(self) -> wire.ChatMessageDelta:
        """The first delta: the call without its arguments."""
        if self._legacy:
            return wire.ChatMessageDelta(function_call=wire.CalledFunction(self._name))
        return wire.ChatMessageDelta(tool_calls=[self._call("")])

    def piece(self, text: str) -> wire.ChatMessageDelta | None:
        """The delta for the next piece of the arguments; None if nothing can be sent yet."""
        if self._input is not None:
            text = self._input.feed(text)
        return self._delta(text)

    def empty_piece(self) -> wire.ChatMessageDelta | None:
        """The delta for the next piece, without its text; None where `piece` does more than add the
        text."""
        if not self._started or self._input is not None:
            return None
        return self._text_delta("")

    def end(self, *, complete: bool) -> wire.ChatMessageDelta | None:
        """The last delta. It makes the arguments of a complete call valid JSON, and those of an
        incomplete call invalid."""
        if self._input is not None:
            return self._delta(self._input.end() if complete else "")
        if self._started:
            return None
        return self._delta("{}" if complete else "{")

    def complete_call(self, arguments: str) -> wire.AnswerCall | None:
        """The complete call; None if the arguments of a function are not a JSON object."""
        if self._input is not None:
            return self._call(freeform_input(arguments))
        arguments = arguments or "{}"
        return self._call(arguments) if is_json(arguments, dict[str, Raw]) else None

    def _delta(self, text: str) -> wire.ChatMessageDelta | None:
        if not text:
            return None
        self._started = True
        return self._text_delta(text)

    def _text_delta(self, text: str) -> wire.ChatMessageDelta:
        if self._legacy:
            return wire.ChatMessageDelta(function_call=wire.CalledFunction(arguments=text))
        if self._input is not None:
            call = wire.AnswerCall(index=self.index, custom=wire.CalledTool(input=text))
        else:
            function = wire.CalledFunction(arguments=text)
            call = wire.AnswerCall(index=self.index, function=function)
        return wire.ChatMessageDelta(tool_calls=[call])

    def _call(self, arguments: str) -> wire.AnswerCall:
        call = wire.AnswerCall(index=self.index, id=self.id)
        if self._input is not None:
            call.type = "custom"
            call.custom = wire.CalledTool(self._name, arguments)
        else:
            call.type = "function"
            call.function = wire.CalledFunction(self._name, arguments)
        return call
