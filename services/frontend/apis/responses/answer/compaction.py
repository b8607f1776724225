"""The answer to a compaction: one item with the summary that the model wrote, sealed.

Codex takes anything else beside it for a failure, so neither reasoning nor text is sent; until then the stream has its
keep-alive events only.
"""

import msgspec
from msgspec import Raw

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import BlockStart, BlockStop, Finish
from services.frontend.apis.base import Reply
from services.frontend.apis.responses.answer.items import OutputItem, Shape
from services.frontend.apis.responses.answer.stream import ResponsesStream
from services.frontend.apis.responses.sealing import TextSealer, seal_summary

NO_SUMMARY = ErrorInfo(ErrorKind.ENGINE, "The model wrote no summary of the conversation.")


class _HiddenItem(OutputItem):
    """A block of which nothing is sent."""

    def final(self, stop: BlockStop) -> None:
        return None


class CompactionStream(ResponsesStream):
    """Renders one compaction."""

    def __init__(self, reply: Reply, shape: Shape, sealer: TextSealer, *, recorded: bool = False) -> None:
        super().__init__(reply, shape, recorded=recorded)
        self._sealer = sealer
        self._texts: list[_HiddenItem] = []

    def _new_item(self, start: BlockStart) -> OutputItem:
        item = _HiddenItem(self._writer, "", 0)
        if start.kind == "text":
            self._texts.append(item)
        return item

    def _finish(self, event: Finish) -> None:
        summary = "\n".join(text for item in self._texts if (text := item.text)).strip()
        if not summary:
            self._fail(NO_SUMMARY)
            return
        sealed = seal_summary(self._sealer, summary)
        item = {"id": f"cmp_{self.state.reply.turn}000", "type": "compaction", "encrypted_content": sealed}
        self._add_whole(Raw(msgspec.json.encode(item)))
        self.state.finish(event)
        self._end()
