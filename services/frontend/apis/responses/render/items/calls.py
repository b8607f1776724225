"""Renders the output items of calls that the client runs: functions, freeform tools, and built-in
tools."""

from abc import abstractmethod
from collections.abc import Sequence

from msgspec import UNSET, Raw
from msgspec.structs import replace
from typing_extensions import override

from schemas.events import BlockStart, BlockStop, TokenLogprob
from services.frontend.apis.responses import wire_answers, wire_events
from services.frontend.apis.responses.parse.tools.request_tools import ToolName, find_tool_name
from services.frontend.apis.responses.render.events import plain_delta
from services.frontend.apis.responses.render.items.built_in import ID_PREFIXES, built_in_call
from services.frontend.apis.responses.render.items.open_item import (
    DispatchKind,
    ItemPlace,
    OpenItem,
    encode_item,
)
from services.frontend.apis.shared.decode import is_json
from services.frontend.apis.shared.tools import FreeformInput


def open_call(place: ItemPlace, start: BlockStart) -> OpenItem:
    """The item of a call that begins."""
    name = find_tool_name(place.shape.names, start.name or "")
    call_id = start.call_id or f"call_{place.turn}{start.block}"
    if name.kind in ID_PREFIXES:
        return OpenBuiltInCall(place, name, call_id)
    if name.kind == "custom":
        return OpenCustomCall(place, name, call_id)
    return OpenFunctionCall(place, name, call_id)


class OpenNamedCall(OpenItem):
    """A call of a tool of the client's own, which is sent while the model writes it."""

    def __init__(self, prefix: str, place: ItemPlace, name: ToolName, call_id: str) -> None:
        super().__init__(prefix, place, _dispatch(place))
        self._name = name.name
        self._namespace = name.namespace or UNSET
        self._call_id = call_id

    @override
    def begin(self, out: wire_events.Events) -> None:
        out.append(self._added(self._item("in_progress")))

    @override
    def cut_off(self) -> wire_answers.OutputCall:
        return self._item("incomplete")

    @abstractmethod
    def _item(self, status: wire_answers.ItemStatus) -> wire_answers.OutputCall:
        """The item with the text so far."""


class OpenFunctionCall(OpenNamedCall):
    """A call of a function."""

    def __init__(self, place: ItemPlace, name: ToolName, call_id: str) -> None:
        super().__init__("fc", place, name, call_id)
        self.plain = plain_delta(self._delta(""))

    @override
    def end(self, stop: BlockStop, out: wire_events.Events) -> Raw:
        if stop.complete and not self.pieces:
            self.add("{}", (), out)
        text = self.text
        looks_complete = not text.strip() or is_json(text, Raw)
        if looks_complete and not stop.complete:
            return encode_item(self.cut_off())

        if not is_json(text, dict[str, Raw]):
            self._dispatch = None
        out.append(
            wire_events.FunctionArgumentsDone(
                item_id=self.id, output_index=self.index, arguments=text, name=self._name
            )
        )
        status: wire_answers.ItemStatus = "completed" if stop.complete else "incomplete"
        return self._done(self._item(status), out)

    @override
    def _delta(self, text: str) -> wire_events.FunctionArgumentsDelta:
        return wire_events.FunctionArgumentsDelta(
            item_id=self.id, output_index=self.index, delta=text
        )

    @override
    def _item(self, status: wire_answers.ItemStatus) -> wire_answers.OutputCall:
        return wire_answers.OutputFunctionCall(
            id=self.id,
            status=status,
            call_id=self._call_id,
            name=self._name,
            arguments=self.text,
            namespace=self._namespace,
        )


class OpenCustomCall(OpenNamedCall):
    """A call of a freeform tool."""

    def __init__(self, place: ItemPlace, name: ToolName, call_id: str) -> None:
        super().__init__("ctc", place, name, call_id)
        self._input = FreeformInput()

    @override
    def add(self, text: str, tokens: Sequence[TokenLogprob], out: wire_events.Events) -> None:
        super().add(self._input.feed(text), tokens, out)

    @override
    def end(self, stop: BlockStop, out: wire_events.Events) -> Raw:
        if not stop.complete:  # a truncated input looks like a whole one
            return encode_item(self.cut_off())
        super().add(self._input.end(), (), out)  # an input that was not spelled as expected
        out.append(
            wire_events.CustomInputDone(item_id=self.id, output_index=self.index, input=self.text)
        )
        return self._done(self._item("completed"), out)

    @override
    def _delta(self, text: str) -> wire_events.CustomInputDelta:
        return wire_events.CustomInputDelta(item_id=self.id, output_index=self.index, delta=text)

    @override
    def _item(self, status: wire_answers.ItemStatus) -> wire_answers.OutputCall:
        return wire_answers.OutputCustomCall(
            id=self.id,
            status=status,
            call_id=self._call_id,
            name=self._name,
            input=self.text,
            namespace=self._namespace,
        )


class OpenBuiltInCall(OpenItem):
    """A call of a built-in tool, sent when it is complete. With invalid arguments it becomes a
    function call, for which the client returns an error to the model."""

    def __init__(self, place: ItemPlace, name: ToolName, call_id: str) -> None:
        super().__init__(ID_PREFIXES[name.kind], place, _dispatch(place))
        self._place = place
        self._name = name
        self._call_id = call_id

    @override
    def end(self, stop: BlockStop, out: wire_events.Events) -> Raw | None:
        if not stop.complete:
            return None
        call = built_in_call(self._name.kind, self.id, self._call_id, self.text or "{}")
        if call is None:
            return self._end_as_function(stop, out)
        out.append(self._added(replace(call, status="in_progress")))
        return self._done(call, out)

    def _end_as_function(self, stop: BlockStop, out: wire_events.Events) -> Raw:
        function = OpenFunctionCall(self._place, self._name, self._call_id)
        function.begin(out)
        function.add(self.text, (), out)
        return function.end(stop, out)


def _dispatch(place: ItemPlace) -> DispatchKind | None:
    return wire_events.ResponsesToolCallDispatch if place.answer.dispatch else None
