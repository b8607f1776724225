"""The items of a Response while their blocks are open: what all of them have in common.

Items of text open with their first character, so they are never empty. The text of an item does not
depend on how the turn's events were split.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw, Struct
from typing_extensions import override

from schemas.events import BlockStop, TokenLogprob, Usage
from services.frontend.apis.responses import wire_answers, wire_events
from services.frontend.apis.responses.parse.tools.request_tools import ToolName
from services.frontend.apis.shared.turn_renderer import Plain
from services.frontend.turns.interfaces import RenderInfo

CUT_OFF = BlockStop(0, complete=False)
"""The end of a block that was open when the turn ended."""
DispatchKind: TypeAlias = (
    type[wire_events.ResponsesToolCallDispatch] | type[wire_events.ResponsesReasoningDispatch]
)
_encode = msgspec.json.Encoder().encode


class ResponsesShape(Struct, frozen=True):
    """The request's settings for its answer."""

    names: Mapping[str, ToolName]
    """Tools by their rendered names."""
    namespaces: Mapping[str, str]
    """The descriptions of the namespaces of the tools that this server searches."""
    echo: Mapping[str, Any]
    """The members of the Response object that repeat the request."""
    sealed: bool = False
    """Reasoning carries `encrypted_content`."""
    summary: bool = False
    """Reasoning is also sent as its summary, which clients show."""
    sources: bool = False
    """Web searches carry the URLs that they found."""
    logprobs: bool = False
    prompt_only: bool = False
    """Nothing is generated, and an answer without output is complete."""
    compared: bool = False
    """The prompt is compared with another response's."""
    compacted: bool = False
    """The input has a compaction item."""
    before: Sequence[Raw] = ()
    """Items from before the turn, which come first in the output."""
    spent: Usage = Usage()
    """The usage of making `before`."""


class ItemPlace(Struct, frozen=True):
    """The answer that an item belongs to, and its place there."""

    answer: RenderInfo
    shape: ResponsesShape
    turn: str
    """The id of the item's turn. Each round of hosted tools is a turn."""
    index: int
    """The position in the Response's `output`."""

    def item_id(self, prefix: str) -> str:
        """The id of the item at this place."""
        return f"{prefix}_{self.turn}{self.index:03d}"


class OpenItem(ABC):
    """One block of the turn as an output item. Its methods append its events to `out`."""

    plain: Plain | None = None
    """Set if the next piece only has to be appended to `pieces` and sent, after its number, between
    these bytes."""

    def __init__(self, prefix: str, place: ItemPlace, dispatch: DispatchKind | None = None) -> None:
        """`prefix`: of the item's id. `dispatch`: the event that repeats the item at its end."""
        self.id = place.item_id(prefix)
        self.index = place.index
        self.pieces: list[str] = []
        self._dispatch = dispatch

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}, {len(self.pieces)} pieces>"

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)

    def begin(self, out: wire_events.Events) -> None:  # noqa: B027  only calls begin with their block
        """Begins the block."""

    def add(self, text: str, tokens: Sequence[TokenLogprob], out: wire_events.Events) -> None:
        """Adds the next piece. `tokens`: as in `Delta.logprobs`."""
        if not text:
            return
        if not self.pieces:
            self._open(out)
        self.pieces.append(text)
        delta = self._delta(text)
        if delta is not None:
            out.append(delta)

    @abstractmethod
    def end(self, stop: BlockStop, out: wire_events.Events) -> Raw | None:
        """Ends the block. Returns the item for the Response; None where it has none.

        Agents run calls on `output_item.done`, so a cut-off call that looks complete has none.
        """

    def cut_off(self) -> wire_answers.OutputItem | None:
        """The item of a turn that ended in this block; None where the Response has none."""
        return None

    def _open(self, out: wire_events.Events) -> None:  # noqa: B027  only items of text begin here
        """Begins with the first character."""

    def _delta(self, text: str) -> wire_events.DeltaEvent | None:
        """The event of a piece of text; None for items that are sent whole."""
        return None

    def _added(self, item: wire_answers.OutputItem) -> wire_events.OutputItemAdded:
        return wire_events.OutputItemAdded(output_index=self.index, item=encode_item(item))

    def _done(self, item: wire_answers.OutputItem, out: wire_events.Events) -> Raw:
        """Ends the item with its last events, and returns its JSON."""
        encoded = encode_item(item)
        out.append(wire_events.OutputItemDone(output_index=self.index, item=encoded))
        if self._dispatch is not None:
            out.append(self._dispatch(self.index, encoded))
        return encoded


class NoItem(OpenItem):
    """Stands for the item between two blocks, where nothing is sent."""

    def __init__(self) -> None:
        pass

    def __repr__(self) -> str:
        return "<no item>"

    @override
    def add(self, text: str, tokens: Sequence[TokenLogprob], out: wire_events.Events) -> None:
        pass

    @override
    def end(self, stop: BlockStop, out: wire_events.Events) -> None:
        return None


NO_ITEM = NoItem()


def encode_item(item: wire_answers.OutputItem) -> Raw:
    """The JSON of an item."""
    return Raw(_encode(item))
