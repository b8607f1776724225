"""Tests that no field of a request of the vendors' SDKs, however deep, is taken without a word: it has
an effect, is refused, named in a header, or declared in the docs."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.frontend.vendor_fields import SEARCHING, audit
from tests.kit.bodies import CHAT, COMPLETIONS, MESSAGES, Api

DIFFERENCES = Path(__file__).parents[2] / "docs" / "differences.md"
REFUSED: dict[str, set[str]] = {
    "messages": {
        "CompactionConfigParam",
        "ContainerUploadBlockParam",
        "FileDocumentSourceParam",
        "FileImageSourceParam",
        "RequestMCPServerToolConfigurationParam",
        "RequestMCPServerURLDefinitionParam",
        "ThreadContinueParams",
        "ThreadCreateParams",
    },
    "chat": {"Audio"},
    "completions": set(),
    "responses": {
        "CompactionTrigger",
        "CompactionTriggerAgent",
        "ItemReference",
        "ItemReferenceAgent",
        "ResponseCompactionItemParamParam",
        "ResponseConversationParamParam",
        "ResponsePromptParam",
        "ToolChoiceBetaSpecificProgrammaticToolCallingParam",
        "ToolChoiceMcpParam",
        "ToolChoiceSpecificProgrammaticToolCallingParam",
        "ToolChoiceTypesParam",
    },
}
"""The types that are refused whole, without those of Anthropic's browser and computer tools."""
COMPUTERS = re.compile("Browser|Computer|ToolComputerUse")


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


def declared(api: str) -> set[str]:
    """The members that the docs name as without effect."""
    section = DIFFERENCES.read_text().partition("## Without effect")[2]
    lines = [line for line in section.splitlines() if line.lower().startswith(f"- {api}:")]
    return set(re.findall(r"`(\w+)`", lines[0]))


@pytest.mark.slow
@pytest.mark.parametrize("api", [MESSAGES, CHAT, COMPLETIONS, SEARCHING], ids=lambda api: api.name)
def test_fields_of_the_sdks_without_effect_are_the_declared_ones(
    api: Api, roots: dict[str, list[Any]]
) -> None:
    refused, idle = audit(api, roots[api.name])
    assert idle == declared(api.name)
    assert {name for name in refused if not COMPUTERS.match(name)} == REFUSED[api.name]
