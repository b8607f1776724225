"""The answer to a compaction: one item with the summary that the model wrote, sealed.

Codex takes anything else beside it for a failure, so neither reasoning nor text is sent; until then the stream has its
keep-alive events only.
"""

from typing import Any

import msgspec
from msgspec import Raw

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import BlockStart, BlockStop, Finish, TokenLogprob
from services.frontend.apis.base import Reply
from services.frontend.apis.responses.answer.items import Shape
from services.frontend.apis.responses.answer.stream import ResponsesStream
from services.frontend.apis.responses.sealing import TextSealer, seal_summary

NO_SUMMARY = ErrorInfo(ErrorKind.ENGINE, "The model wrote no summary of the conversation.")


class CompactionStream(ResponsesStream):
    """Renders one compaction."""

    def __init__(self, reply: Reply, shape: Shape, sealer: TextSealer, *, recorded: bool = False) -> None:
        super().__init__(reply, shape, recorded=recorded)
        self._sealer = sealer
        self._summary: list[str] = []

    def _start(self, event: BlockStart, out: list[bytes]) -> None:
        self._block = event

    def _delta(self, text: str, logprobs: list[TokenLogprob], out: list[bytes]) -> None:
        if self._block is not None and self._block.kind == "text":
            self._summary.append(text)

    def _stop(self, event: BlockStop, out: list[bytes]) -> None:
        self._block = None
        if self._summary and self._summary[-1] != "\n":
            self._summary.append("\n")

    def _finish(self, event: Finish, out: list[bytes]) -> None:
        summary = "".join(self._summary).strip()
        if not summary:
            self._fail(NO_SUMMARY, out)
            return
        item: dict[str, Any] = {
            "id": f"cmp_{self.state.reply.turn}000",
            "type": "compaction",
            "encrypted_content": seal_summary(self._sealer, summary),
        }
        self._whole_item(Raw(msgspec.json.encode(item)), out)
        self.state.finish(event)
        self._last(out)
