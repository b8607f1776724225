"""Tests that no member of the SDKs' requests is unknown here: a type of the API has it, or the docs
declare it without effect."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import get_type_hints

from tests.kit.every import for_each

ROOT = Path(__file__).parents[2]
UNREAD: dict[str, set[str]] = {
    "messages": {"billing_policy", "fallback_credit_token", "fallbacks"},
    "chat": {"prediction"},
    "completions": set(),
    "responses": {"access_programs", "background_options", "image"},
}
"""Members that are left out with all that is within them."""


@pytest.fixture
def roots() -> dict[str, list[Any]]:
    """The types of whole requests in the SDKs, the betas' too."""
    from anthropic.types import beta as anthropic_beta
    from openai.types import beta as openai_beta
    from openai.types import completion_create_params
    from openai.types.beta import responses as beta_responses
    from openai.types.chat import completion_create_params as chat_params

    return {
        "messages": [
            anthropic_beta.message_create_params.MessageCreateParamsStreaming,
            anthropic_beta.message_count_tokens_params.MessageCountTokensParams,
        ],
        "chat": [chat_params.CompletionCreateParamsStreaming],
        "completions": [completion_create_params.CompletionCreateParamsStreaming],
        "responses": [
            openai_beta.response_create_params.ResponseCreateParamsStreaming,
            openai_beta.response_compact_params.ResponseCompactParams,
            beta_responses.input_token_count_params.InputTokenCountParams,
        ],
    }


def fields(api: str) -> set[str]:
    """The members of the types of an API, and of those that all have."""
    folders = [ROOT / "services/frontend/apis" / folder for folder in (api, "shared")]
    classes = [
        node
        for folder in folders
        for file in folder.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    members = [member for node in classes for member in node.body]
    return {ast.unparse(each.target) for each in members if isinstance(each, ast.AnnAssign)}


def declared(api: str) -> set[str]:
    """The members that the docs name as without effect."""
    section = (ROOT / "docs/differences.md").read_text().partition("## Without effect")[2]
    lines = [line for line in section.splitlines() if line.lower().startswith(f"- {api}:")]
    return set(re.findall(r"`(\w+)`", lines[0]))


@pytest.mark.slow
@for_each(UNREAD)
def test_every_member_of_the_sdks_is_known(api: str, roots: dict[str, list[Any]]) -> None:
    named = {name for root in roots[api] for name in get_type_hints(root)}
    own = fields(api) | (fields("chat") if api == "completions" else set())
    assert named - own - declared(api) == UNREAD[api]
