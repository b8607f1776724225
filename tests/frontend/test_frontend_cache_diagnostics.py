"""The words of Messages and Responses for a comparison of two prompts."""

from schemas.events import PromptComparison
from services.frontend.apis.messages.message_renderer import diagnostics as messages_diagnostics
from services.frontend.apis.responses.render.document import diagnostics as responses_diagnostics
from tests.kit.every import for_rows

CHANGES: list[tuple[list[str], str, str]] = [
    (["model"], "model_changed", "model_changed"),
    (["system"], "system_changed", "input_changed"),
    (["tools"], "tools_changed", "tools_changed"),
    (["messages"], "messages_changed", "input_changed"),
    (["thinking"], "unavailable", "reasoning_effort_changed"),
    (["format"], "unavailable", "text_format_changed"),
    (["system", "format"], "system_changed", "text_format_changed"),
]


@for_rows(CHANGES)
def test_first_change_is_named(changed: list[str], of_messages: str, of_responses: str) -> None:
    comparison = PromptComparison(100, 40, changed)
    missed = {} if of_messages == "unavailable" else {"cache_missed_input_tokens": 40}
    reason = {"type": of_messages} | missed
    assert messages_diagnostics("m", comparison) == {"cache_miss_reason": reason}
    found = responses_diagnostics(comparison, compacted=False)
    tokens = {"cache_missed_tokens": 40, "comparison_reusable_tokens": 100}
    assert found == {"type": "cache_miss", "reason": of_responses, **tokens}


@for_rows(
    [
        (None, "unavailable", "unavailable"),
        (PromptComparison(), "previous_message_not_found", "comparison_response_not_found"),
        (PromptComparison(100), None, "cache_hit"),
        (PromptComparison(100, 40), "unavailable", "unavailable"),
    ]
)
def test_comparison_without_a_change_of_the_request_is_named(
    comparison: PromptComparison | None, reason: str | None, kind: str
) -> None:
    cause = {"cache_miss_reason": {"type": reason}} if reason else None
    assert messages_diagnostics("m", comparison) == cause
    assert messages_diagnostics("", comparison) is None
    found = responses_diagnostics(comparison, compacted=True)
    assert found == {"type": kind}


@for_rows([("history", True, "context_compacted"), ("messages", True, "input_changed")])
def test_compaction_is_a_shorter_history_after_an_item(
    part: str, compacted: bool, reason: str
) -> None:
    found = responses_diagnostics(PromptComparison(9, 4, [part]), compacted=compacted)
    assert found["reason"] == reason
