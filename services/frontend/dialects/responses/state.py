"""Where a Response stands, and the object that says so."""

from typing import Any

from msgspec import Raw

from schemas.errors import ErrorInfo
from schemas.events import Finish, FinishReason, Usage
from services.frontend.dialects.base import Reply
from services.frontend.dialects.responses.document import Status, response_document
from services.frontend.dialects.responses.output import Shape

_CUT = (FinishReason.LENGTH, FinishReason.CONTEXT)


class State:
    """One Response, from its beginning to its end."""

    __slots__ = ("failure", "incomplete", "items", "reply", "shape", "status", "usage")

    def __init__(self, reply: Reply, shape: Shape) -> None:
        self.reply = reply
        self.shape = shape
        self.items: list[Raw] = []
        self.status: Status = "in_progress"
        self.usage: Usage | None = None
        self.failure: ErrorInfo | None = None
        self.incomplete: str | None = None

    @property
    def over(self) -> bool:
        """Nothing can follow."""
        return self.status != "in_progress"

    def cut_by(self, finish: Finish) -> bool:
        """Whether the turn ended before the model had said all. A prompt that was only to be prefilled has not, and a
        summary is one however long."""
        return finish.reason in _CUT and not self.shape.prefill and not self.shape.compacting

    def finish(self, finish: Finish) -> None:
        """The turn ended by itself."""
        self.usage = _sum(finish.usage, self.shape.spent)
        cut = self.cut_by(finish)
        self.status = "incomplete" if cut else "completed"
        self.incomplete = "max_output_tokens" if cut else None

    def fail(self, info: ErrorInfo) -> None:
        """The turn ended with an error."""
        self.status, self.failure = "failed", info

    def document(self, status: Status | None = None) -> dict[str, Any]:
        """The Response object; `status` overrides the state."""
        shown = status or self.status
        return response_document(
            self.reply,
            self.shape.echo,
            status=shown,
            output=self.items,
            usage=self.usage,
            error=self.failure if shown == "failed" else None,
            incomplete=self.incomplete if shown == "incomplete" else None,
        )


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.prompt + other.prompt,
        one.cached + other.cached,
        one.output + other.output,
        one.reasoning + other.reasoning,
    )
