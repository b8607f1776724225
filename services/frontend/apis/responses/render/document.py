"""Keeps the state of one Response, and makes its document."""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Raw, UnsetType

from schemas.errors import ErrorInfo
from schemas.events import Finish, FinishReason, PromptComparison, Usage
from services.frontend.apis.responses import wire_answers, wire_events
from services.frontend.apis.responses.errors import failure
from services.frontend.apis.responses.render.items.open_item import ResponsesShape
from services.frontend.apis.shared.turn_renderer import TokenReport
from services.frontend.turns.interfaces import RenderInfo

_MISS_REASONS = {
    "model": "model_changed",
    "tools": "tools_changed",
    "deferred": "tools_changed",
    "format": "text_format_changed",
    "thinking": "reasoning_effort_changed",
    "verbosity": "verbosity_changed",
}
"""Parts of a request, as in `PromptComparison.changed`; all others are input."""

_LAST_EVENTS: dict[wire_answers.Status, type[wire_events.LastResponseEvent]] = {
    "completed": wire_events.ResponseCompleted,
    "incomplete": wire_events.ResponseIncomplete,
    "failed": wire_events.ResponseFailed,
}


def response_id(turn: str) -> str:
    """The id of the response that a turn makes."""
    return f"resp_{turn}"


def diagnostics(comparison: PromptComparison | None, *, compacted: bool) -> dict[str, Any]:
    """The Response's `prompt_cache_diagnostics`. `compacted`: the input has a compaction item."""
    if comparison is None or (comparison.missed and not comparison.changed):
        return {"type": "unavailable"}
    if comparison.missed:
        return {
            "type": "cache_miss",
            "reason": _miss_reason(comparison.changed, compacted),
            "cache_missed_tokens": comparison.missed,
            "comparison_reusable_tokens": comparison.earlier,
        }
    if comparison.earlier:
        return {"type": "cache_hit"}
    return {"type": "comparison_response_not_found"}


def _miss_reason(changed: Sequence[str], compacted: bool) -> str:
    for part, reason in _MISS_REASONS.items():
        if part in changed:
            return reason
    if compacted and "history" in changed:
        return "context_compacted"
    return "input_changed"


class ResponseState:
    """One Response, from its beginning to its end."""

    def __init__(self, answer: RenderInfo, shape: ResponsesShape) -> None:
        self.answer = answer
        self.shape = shape
        self.items: list[Raw] = []
        """The finished output items, as JSON."""
        self.status: wire_answers.Status = "in_progress"
        self.usage: Usage | None = None
        self.failure: ErrorInfo | None = None
        self._completed_at: int | None = None
        self.diagnostics: dict[str, Any] | UnsetType = UNSET
        self.tokens = TokenReport()
        """Token ids, in the document once the Response has ended."""

    def __repr__(self) -> str:
        return f"<{response_id(self.answer.turn)} {self.status}, {len(self.items)} items>"

    @property
    def ended(self) -> bool:
        """Whether the Response has ended."""
        return self.status != "in_progress"

    def add_item(self, item: Raw, opening: Raw | None = None) -> wire_events.Events:
        """Adds an item that is complete, and returns its events. `opening`: the item as it begins,
        if that is another."""
        index = len(self.items)
        self.items.append(item)
        return [
            wire_events.OutputItemAdded(output_index=index, item=opening or item),
            wire_events.OutputItemDone(output_index=index, item=item),
        ]

    def cut_by(self, finish: Finish) -> bool:
        """Whether a limit ended the turn early. A turn that generates nothing is not cut."""
        at_limit = finish.reason in (FinishReason.LENGTH, FinishReason.CONTEXT)
        return at_limit and not self.shape.prompt_only

    def finish(self, usage: Usage, *, cut: bool) -> None:
        """Ends the Response of a finished turn. `cut`: a limit ended it early. `completed_at` is
        the time of this call."""
        self._completed_at = int(self.answer.clock())
        self.usage = usage + self.shape.spent
        self.status = "incomplete" if cut else "completed"

    def fail(self, info: ErrorInfo) -> None:
        """Ends the Response with an error."""
        self.status = "failed"
        self.failure = info

    def last_event(self) -> wire_events.Event:
        """The last event of the stream, with the Response."""
        return _LAST_EVENTS[self.status](response=self.document())

    def document(self, status: wire_answers.Status | None = None) -> wire_answers.ResponsesAnswer:
        """The Response object at this moment; `status` overrides the state."""
        status = status or self.status
        completed_at = error = incomplete_details = None
        if status == "completed":
            completed_at = self._completed_at
        elif status == "incomplete":
            incomplete_details = {"reason": "max_output_tokens"}
        elif status == "failed" and self.failure is not None:
            error = failure(self.failure)
        return wire_answers.ResponsesAnswer(
            id=response_id(self.answer.turn),
            created_at=self.answer.created,
            status=status,
            completed_at=completed_at,
            error=error,
            incomplete_details=incomplete_details,
            model=self.answer.model,
            output=list(self.items),
            **self.shape.echo,
            prompt_cache_diagnostics=self.diagnostics,
            usage=_usage(self.usage),
            **self._token_ids(),
        )

    def _token_ids(self) -> dict[str, Any]:
        if not self.ended:
            return {}
        return self.tokens.prompt() | self.tokens.output()


def _usage(usage: Usage | None) -> wire_answers.ResponsesUsage | None:
    if usage is None:
        return None
    return wire_answers.ResponsesUsage(
        usage.prompt,
        {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        usage.output,
        {"reasoning_tokens": usage.reasoning},
        usage.prompt + usage.output,
    )
