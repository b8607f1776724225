"""The answer to a compaction: exactly one item, which holds the summary that the model wrote (apis.md D.5).

Codex takes anything else beside it for a failure, so neither the model's thoughts nor its text are shown; the stream's
keep-alive says that it works.
"""

from typing import Any

import msgspec
from msgspec import Raw

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import BlockStart, BlockStop, Finish, TokenLogprob
from services.frontend.dialects.base import Reply
from services.frontend.dialects.responses.output import Shape
from services.frontend.dialects.responses.stream import ResponsesStream
from services.frontend.dialects.responses.vault import Vault, seal_summary

NO_SUMMARY = ErrorInfo(ErrorKind.ENGINE, "The model wrote no summary of the conversation.")


class CompactionStream(ResponsesStream):
    """Renders one compaction."""

    __slots__ = ("_summary", "_vault")

    def __init__(self, reply: Reply, shape: Shape, vault: Vault) -> None:
        super().__init__(reply, shape)
        self._vault = vault
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
            "id": f"cmp_{self._state.reply.turn}000",
            "type": "compaction",
            "encrypted_content": seal_summary(self._vault, summary),
        }
        raw = Raw(msgspec.json.encode(item))
        self._state.items.append(raw)
        self._event("response.output_item.added", {"output_index": 0, "item": raw}, out)
        self._event("response.output_item.done", {"output_index": 0, "item": raw}, out)
        self._state.finish(event)
        self._last(out)
