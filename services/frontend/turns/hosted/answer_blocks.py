"""Numbers the blocks of an answer of several turns, and leaves out what its client does not see.
Pure."""

from collections.abc import Mapping

from msgspec.structs import replace

from schemas.conversation import HostedTool
from schemas.events import BlockStart, Dispatch, EventInBlock, Finish, TurnEvent


class AnswerBlocks:
    """The blocks that the client has got so far."""

    def __init__(self, hosted: Mapping[str, HostedTool]) -> None:
        """`hosted`: the hosted tools of the answer by name."""
        self._hosted = hosted
        self._shift = 0
        """The offset of the current turn's blocks among those of the answer."""
        self._is_hidden = False
        """Whether the open block is hidden."""

    @property
    def are_those_of_turn(self) -> bool:
        """Whether the client gets the open block as it is."""
        return not self._shift and not self._is_hidden

    @property
    def count(self) -> int:
        """The number of blocks, between two turns."""
        return self._shift

    def translate(self, event: TurnEvent) -> TurnEvent | None:
        """Returns an event of the current turn as the client gets it; None if it does not get it:
        calls of hosted tools are not dispatched to it, and a turn's end is not the answer's."""
        if isinstance(event, Finish):
            return None
        if not isinstance(event, EventInBlock):
            return event
        if isinstance(event, BlockStart):
            event = self._translate_start(event)
        if self._is_hidden or (isinstance(event, Dispatch) and event.name in self._hosted):
            return None
        if self._shift:
            event = replace(event, block=event.block + self._shift)
        return event

    def _translate_start(self, start: BlockStart) -> BlockStart:
        """The start of a block, of the kind that the client gets. Notes whether it is hidden."""
        tool = self._hosted.get(start.name or "") if start.kind == "tool_use" else None
        self._is_hidden = tool is not None and tool.hidden
        self._shift -= self._is_hidden
        return start if tool is None else replace(start, kind="hosted")

    def end_turn(self, finish: Finish) -> None:
        """Adds the blocks of a turn that has ended."""
        self._shift += finish.blocks
        self._is_hidden = False
