"""How the answers of Chat Completions and Completions end: token counts, the marks of a stream, errors in it."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from schemas.errors import ErrorInfo
from schemas.events import Finish, FinishReason, Prepared, Usage
from services.frontend.dialects.shared_errors import openai_error

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"

_LENGTH = (FinishReason.LENGTH, FinishReason.CONTEXT)


def reason_of(finish: Finish, calls: str | None = None) -> dict[str, Any]:
    """`finish_reason`; and where a stop string ended the text, which one (vLLM's `stop_reason`).

    `calls`: the reason that stands for complete calls, if there are any. Only a model that stopped by itself has it:
    one that was cut off behind a call is `length`, as natively.
    """
    if finish.reason in _LENGTH:
        return {"finish_reason": "length"}
    if finish.reason is FinishReason.STOP_STRING:
        return {"finish_reason": "stop", "stop_reason": finish.stop_string}
    return {"finish_reason": calls or "stop"}


def usage_of(usages: Sequence[Usage], prompts: int = 1) -> dict[str, Any]:
    """Token counts of all choices. Those of one prompt share it: it counts once, as does what was cached of it.

    `prompts`: how many prompts the choices have; each has as many of them, in order.
    """
    each = len(usages) // prompts
    groups = [usages[at : at + each] for at in range(0, len(usages), each)]
    prompt = sum(group[0].prompt for group in groups)
    cached = sum(min(usage.cached for usage in group) for group in groups)
    return _document(prompt, sum(usage.output for usage in usages), cached, sum(usage.reasoning for usage in usages))


def first_usage(prepared: Iterable[Prepared]) -> dict[str, Any]:
    """Token counts before decoding began; `prepared`: one for each prompt."""
    return _document(sum(each.prompt_tokens for each in prepared), 0, 0, 0)


def error_chunk(info: ErrorInfo) -> bytes:
    """The error as the last chunk of a stream; the SDKs raise it. No `[DONE]` follows: nothing is done."""
    return b"data: " + msgspec.json.encode({"error": openai_error(info)}) + b"\n\n"


def _document(prompt: int, completion: int, cached: int, reasoning: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
