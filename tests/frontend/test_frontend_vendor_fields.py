"""Tests that no field of a request of the vendors' SDKs, however deep, is taken without a word: it has
an effect, is refused, named in a header, or declared in the docs."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.frontend.vendor_fields import SEARCHING, audit
from tests.frontend.vendor_tables import IDLE, REFUSED
from tests.kit.bodies import CHAT, COMPLETIONS, MESSAGES, Api

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def roots() -> dict[str, list[Any]]:
    """The types of whole requests in the SDKs, the betas' too."""
    from anthropic.types import beta as anthropic_beta
    from anthropic.types import message_count_tokens_params, message_create_params
    from openai.types import beta as openai_beta
    from openai.types import completion_create_params, responses
    from openai.types.beta import responses as beta_responses
    from openai.types.chat import completion_create_params as chat_params

    return {
        "messages": [
            message_create_params.MessageCreateParamsStreaming,
            message_count_tokens_params.MessageCountTokensParams,
            anthropic_beta.message_create_params.MessageCreateParamsStreaming,
            anthropic_beta.message_count_tokens_params.MessageCountTokensParams,
        ],
        "chat": [chat_params.CompletionCreateParamsStreaming],
        "completions": [completion_create_params.CompletionCreateParamsStreaming],
        "responses": [
            responses.response_create_params.ResponseCreateParamsStreaming,
            responses.response_compact_params.ResponseCompactParams,
            responses.input_token_count_params.InputTokenCountParams,
            openai_beta.response_create_params.ResponseCreateParamsStreaming,
            openai_beta.response_compact_params.ResponseCompactParams,
            beta_responses.input_token_count_params.InputTokenCountParams,
        ],
    }


@pytest.mark.parametrize("api", [MESSAGES, CHAT, COMPLETIONS, SEARCHING], ids=lambda api: api.name)
def test_no_field_of_the_sdks_is_taken_without_a_word(
    api: Api, roots: dict[str, list[Any]]
) -> None:
    refused, idle = audit(api, roots[api.name])
    known = {member: set(types.split()) for member, types in IDLE[api.name].items()}
    unknown = {member: types - known.get(member, set()) for member, types in idle.items()}
    assert {member: types for member, types in unknown.items() if types} == {}
    assert refused == set(REFUSED[api.name].split())


def test_fields_without_effect_are_declared() -> None:
    section = (DOCS / "differences.md").read_text().partition("## Without effect")[2]
    for api, members in IDLE.items():
        line = next(line for line in section.splitlines() if line.lower().startswith(f"- {api}:"))
        assert set(re.findall(r"`(\w+)`", line)) == set(members), api
