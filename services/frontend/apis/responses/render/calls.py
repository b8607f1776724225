"""Renders the output items of calls that the client runs: functions, freeform tools, and built-in
tools."""

from abc import abstractmethod
from collections.abc import Sequence

from msgspec import UNSET, Raw
from msgspec.structs import replace
from typing_extensions import override

from schemas.events import BlockStart, BlockStop, TokenLogprob
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.render.built_in import ID_PREFIXES, built_in_call
from services.frontend.apis.responses.render.events import plain_delta
from services.frontend.apis.responses.render.items import ItemPlace, OpenItem, encode_item
from services.frontend.apis.responses.request.tools import ToolName, tool_name
from services.frontend.apis.shared.decode import is_json
from services.frontend.apis.shared.tools import FreeformInput


def open_call(place: ItemPlace, start: BlockStart) -> OpenItem:
    """The item of a call that begins."""
    name = tool_name(place.shape.names, start.name or "")
    call_id = start.call_id or f"call_{place.turn}{start.block}"
    if name.kind in ID_PREFIXES:
        return OpenBuiltInCall(place, name, call_id)
    if name.kind == "custom":
        return OpenCustomCall(place, name, call_id)
    return OpenFunctionCall(place, name, call_id)


class OpenNamedCall(OpenItem):
    """A call of a tool of the client's own, which is sent while the model writes it."""

    def __init__(self, prefix: str, place: ItemPlace, name: ToolName, call_id: str) -> None:
        super().__init__(prefix, place)
        self._name = name.name
        self._namespace = name.namespace or UNSET
        self._call_id = call_id
        self._dispatched = place.answer.dispatch

    @override
    def begin(self, out: list[wire.Event]) -> None:
        out.append(self._added(self._item("in_progress")))

    @override
    def cut_off(self) -> wire.OutputCall:
        return self._item("incomplete")

    @abstractmethod
    def _item(self, status: wire.ItemStatus) -> wire.OutputCall:
        """The item with the text so far."""


class OpenFunctionCall(OpenNamedCall):
    """A call of a function."""

    def __init__(self, place: ItemPlace, name: ToolName, call_id: str) -> None:
        super().__init__("fc", place, name, call_id)
        self.plain = plain_delta(self._delta(""))

    @override
    def add(self, text: str, tokens: Sequence[TokenLogprob], out: list[wire.Event]) -> None:
        if text:
            self.pieces.append(text)
            out.append(self._delta(text))

    @override
    def end(self, stop: BlockStop, out: list[wire.Event]) -> Raw:
        if not stop.complete:
            return self._end_cut_off(out)
        if not self.pieces:
            self.add("{}", (), out)
        item = encode_item(self._item("completed"))
        self._end_arguments(item, out)
        return item

    def _end_cut_off(self, out: list[wire.Event]) -> Raw:
        item = encode_item(self.cut_off())
        looks_complete = not self.text.strip() or is_json(self.text, Raw)
        if not looks_complete:
            self._end_arguments(item, out)
        return item

    def _end_arguments(self, item: Raw, out: list[wire.Event]) -> None:
        text = self.text
        out.append(
            wire.FunctionArgumentsDone(
                item_id=self.id, output_index=self.index, arguments=text, name=self._name
            )
        )
        out.append(self._done(item))
        if self._dispatched and is_json(text, dict[str, Raw]):
            out.append(wire.ToolCallDispatch(self.index, item))

    def _delta(self, text: str) -> wire.FunctionArgumentsDelta:
        return wire.FunctionArgumentsDelta(item_id=self.id, output_index=self.index, delta=text)

    @override
    def _item(self, status: wire.ItemStatus) -> wire.OutputCall:
        return wire.OutputFunctionCall(
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
    def add(self, text: str, tokens: Sequence[TokenLogprob], out: list[wire.Event]) -> None:
        self._add_input(self._input.feed(text), out)

    def _add_input(self, text: str, out: list[wire.Event]) -> None:
        if text:
            self.pieces.append(text)
            out.append(wire.CustomInputDelta(item_id=self.id, output_index=self.index, delta=text))

    @override
    def end(self, stop: BlockStop, out: list[wire.Event]) -> Raw:
        if not stop.complete:  # a truncated input looks like a whole one
            return encode_item(self.cut_off())
        self._add_input(self._input.end(), out)  # an input that was not spelled as expected
        item = encode_item(self._item("completed"))
        out.append(wire.CustomInputDone(item_id=self.id, output_index=self.index, input=self.text))
        out.append(self._done(item))
        if self._dispatched:
            out.append(wire.ToolCallDispatch(self.index, item))
        return item

    @override
    def _item(self, status: wire.ItemStatus) -> wire.OutputCall:
        return wire.OutputCustomCall(
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
        super().__init__(ID_PREFIXES[name.kind], place)
        self._place = place
        self._name = name
        self._call_id = call_id

    @override
    def add(self, text: str, tokens: Sequence[TokenLogprob], out: list[wire.Event]) -> None:
        self.pieces.append(text)

    @override
    def end(self, stop: BlockStop, out: list[wire.Event]) -> Raw | None:
        if not stop.complete:
            return None
        call = built_in_call(self._name.kind, self.id, self._call_id, self.text or "{}")
        if call is None:
            return self._end_as_function(stop, out)
        item = encode_item(call)
        out.append(self._added(replace(call, status="in_progress")))
        out.append(self._done(item))
        if self._place.answer.dispatch:
            out.append(wire.ToolCallDispatch(self.index, item))
        return item

    def _end_as_function(self, stop: BlockStop, out: list[wire.Event]) -> Raw:
        function = OpenFunctionCall(self._place, self._name, self._call_id)
        function.begin(out)
        function.add(self.text, (), out)
        return function.end(stop, out)

    @override
    def cut_off(self) -> None:
        return None
