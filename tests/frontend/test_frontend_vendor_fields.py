"""Tests that no member of the SDKs' request types, at any depth, is unknown here: a type of the API has
it, the docs declare it without effect, or it is within an object that is not read."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from typing_extensions import get_type_hints, is_typeddict

from tests.kit.every import for_each

ROOT = Path(__file__).parents[2]
UNREAD = {
    "messages": (
        "active allowed_tools authorization_token billing_policy block_binding caching citations city "
        "client_tool_results close_tab configs country cursor_position default_config "
        "display_height_px display_number display_width_px double_click download_id enable_zoom "
        "error_message fallback_credit_token fallbacks file_type file_upload find form_input from "
        "get_page_text hold_key hover is_file_update javascript_exec key left_click left_click_drag "
        "left_mouse_down left_mouse_up lines list_tabs middle_click mouse_move navigate new_lines "
        "new_start new_tab num_lines old_lines old_start read_console read_network read_page region "
        "response_inclusion retrieved_at return_code right_click screenshot scroll scroll_to "
        "server_tool_results size_bytes skill_id start_line stderr stdout switch_tab tab_id "
        "task_budget timezone to tool_configuration tool_references total_lines triple_click "
        "use_cache user_input version wait zoom"
    ),
    "chat": (
        "city country output policy prediction prompt_cache_breakpoint region search_context_size "
        "timezone voice"
    ),
    "completions": "",
    "responses": (
        "access_programs acknowledged_safety_checks actions agent allowed_tools always authorization "
        "background_options button caller categories city complexity connector_id container country "
        "display_height display_width domain domain_secrets embedding_weight exit_code file_ids "
        "frame_count frame_duration_ms hybrid_search image input_fidelity input_image_mask key keys "
        "logs max_concurrent_subagents max_num_results media_type memory_limit moderation_details "
        "moderation_stage network_policy never output_compression outputs partial_images "
        "pending_safety_checks policy prompt_cache_breakpoint ranker ranking_options read_only region "
        "require_approval results revised_prompt score_threshold scroll_x scroll_y "
        "server_description server_url skill_id skills source svg svg_usage text_weight timezone "
        "tool_names tunnel_id variables vector_store_ids version x y"
    ),
}
"""Members of objects that are left out, refused or passed on whole, or that have only declared ones."""


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


def members(hint: Any, seen: set[Any]) -> Iterator[str]:
    """The members of a type and of all types within it."""
    if is_typeddict(hint) and hint not in seen:
        seen.add(hint)
        for name, inner in get_type_hints(hint).items():
            yield name
            yield from members(inner, seen)
    for argument in get_args(hint):
        yield from members(argument, seen)


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
    seen: set[Any] = set()
    named = {name for root in roots[api] for name in members(root, seen)}
    unread = set(UNREAD[api].split())
    own = fields(api) | (fields("chat") if api == "completions" else set())
    assert named - own - declared(api) == unread
    assert declared(api) <= named
