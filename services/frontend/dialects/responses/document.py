"""The Response object (apis.md B.5): what the SDKs' strict types and the Open Responses schema require, together."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Raw

from schemas.errors import ErrorInfo
from schemas.events import Usage
from services.frontend.dialects.base import Reply
from services.frontend.dialects.responses.errors import failure

Status: TypeAlias = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


def response_id(turn: str) -> str:
    """The id of the response that a turn makes."""
    return f"resp_{turn}"


def response_document(
    reply: Reply,
    echo: Mapping[str, Any],
    *,
    status: Status,
    output: Sequence[Raw | dict[str, Any]] = (),
    usage: Usage | None = None,
    error: ErrorInfo | None = None,
    incomplete: str | None = None,
) -> dict[str, Any]:
    """A response in any state, ready for `msgspec.json.encode`.

    `echo`: `ResponsesRequest.echo`. `incomplete`: the reason of an incomplete one. `completed_at` is the time of this
    call where the reply has a clock, else that of the reply.
    """
    completed_at = None
    if status == "completed":
        completed_at = int(reply.now()) if reply.now is not None else reply.created
    return {
        "id": response_id(reply.turn),
        "object": "response",
        "created_at": reply.created,
        "status": status,
        "completed_at": completed_at,
        "error": None if error is None else failure(error),
        "incomplete_details": None if incomplete is None else {"reason": incomplete},
        "model": reply.model,
        "output": list(output),
        **echo,
        "usage": None if usage is None else usage_document(usage),
    }


def usage_document(usage: Usage) -> dict[str, Any]:
    """Token counts. `input_tokens` holds the cached ones, `output_tokens` the reasoning."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.output,
    }
