"""How a turn's end and its token counts read in Messages; one place for the stream and for the whole answer."""

from typing import Any

from schemas.events import Finish, FinishReason, Usage

_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.CONTEXT: "model_context_window_exceeded",
    FinishReason.STOP_STRING: "stop_sequence",
}


def stop_of(finish: Finish, complete_calls: int) -> dict[str, Any]:
    """`stop_reason` and `stop_sequence`. Only a model that stopped by itself has 'used a tool': one that was cut off
    behind a complete call is `max_tokens`, as natively.
    """
    reason = _REASONS.get(finish.reason, "end_turn")
    if reason == "end_turn" and complete_calls:
        reason = "tool_use"
    return {"stop_reason": reason, "stop_sequence": finish.stop_string if reason == "stop_sequence" else None}


def first_usage(prompt_tokens: int) -> dict[str, Any]:
    """Usage before decoding began. What the engine had cached is not known yet; the end of the stream corrects it."""
    return {
        "input_tokens": prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 1,
        "service_tier": "standard",
    }


def last_usage(usage: Usage) -> dict[str, Any]:
    """Usage of the whole turn; `input_tokens` is without what was read from the cache."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }
