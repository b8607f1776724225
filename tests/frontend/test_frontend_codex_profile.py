"""Tests Codex' catalogue: required fields of every version, the model's limits, and profiles of
Codex itself."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from schemas.control import ModelCard
from services.frontend.apis.models.codex_instructions import INSTRUCTIONS
from services.frontend.apis.models.codex_profile import (
    assign_profiles,
    compact_at,
    default_level,
    entry,
    levels,
    profiles_of,
)
from services.runtime.config import FrontendConfig
from tests.kit.frontend import MODEL, FakeGateway, serving

# By version: the fields without a default in Codex' own type (0.72, 0.99, 0.169).
REQUIRED = {
    "slug", "display_name", "supported_reasoning_levels", "shell_type", "visibility", "supported_in_api", "priority",
    "support_verbosity", "truncation_policy", "experimental_supported_tools", "base_instructions",
    "default_reasoning_level", "supports_reasoning_summaries", "supports_parallel_tool_calls", "minimal_client_version",
    "reasoning_summary_format", "upgrade", "default_verbosity", "apply_patch_tool_type", "context_window",
}  # fmt: skip
BUNDLED: dict[str, Any] = {
    "models": [
        {
            "slug": "gpt-5.5",
            "display_name": "GPT",
            "description": "theirs",
            "shell_type": "shell_command",
            "truncation_policy": {"mode": "bytes", "limit": 7},
            "default_reasoning_summary": "none",
            "base_instructions": "their instructions",
            "model_messages": {"instructions_template": "their template"},
            "context_window": 272_000,
            "max_context_window": 272_000,
            "upgrade": {"model": "gpt-9", "migration_markdown": "new"},
            "service_tiers": [{"id": "priority"}],
            "supports_search_tool": True,
            "tool_mode": "code",
        },
        {"slug": "other", "base_instructions": "o"},
    ]
}


def card(**fields: Any) -> ModelCard:
    return ModelCard("acme/m", **fields)


@pytest.mark.parametrize("model", [card(), card(reasoning=True, max_model_len=32_768)])
def test_entry_has_every_field_that_a_version_requires(model: ModelCard) -> None:
    made = entry(model, "name", 3)
    assert made.keys() >= REQUIRED
    assert (made["slug"], made["priority"], made["shell_type"]) == ("name", 3, "unified_exec")
    assert made["truncation_policy"] == {"mode": "tokens", "limit": 10_000}
    assert (made["apply_patch_tool_type"], made["supports_search_tool"]) == ("freeform", True)
    assert made["base_instructions"] == INSTRUCTIONS
    assert made["supports_reasoning_summaries"] is model.reasoning
    assert made["default_reasoning_summary"] == ("auto" if model.reasoning else "none")


@pytest.mark.parametrize(
    ("model", "expected", "default"),
    [
        (card(), [], "none"),
        (card(reasoning=True), ["medium"], "medium"),
        (card(reasoning=True, efforts=["low", "high", "max"]), ["low", "high", "xhigh"], "high"),
        (card(efforts=["minimal", "high"]), ["minimal", "high"], "high"),
    ],
)
def test_levels_are_those_of_the_template(
    model: ModelCard, expected: list[str], default: str
) -> None:
    assert levels(model) == expected
    assert default_level(expected) == default
    assert [
        level["effort"] for level in entry(model, "x")["supported_reasoning_levels"]
    ] == expected


@pytest.mark.parametrize(
    ("window", "expected"),
    [(272_000, 244_800), (131_072, 111_072), (32_768, 24_576)],
)
def test_compaction_leaves_room_for_an_answer(window: int, expected: int) -> None:
    assert compact_at(window) == expected
    made = entry(card(max_model_len=window), "x")
    assert (
        made["context_window"],
        made["max_context_window"],
        made["auto_compact_token_limit"],
    ) == (window, window, expected)


def test_profile_of_codex_replaces_all_but_the_served_fields() -> None:
    theirs = BUNDLED["models"][0]
    made = entry(
        card(max_model_len=65_536, reasoning=True), "acme/m", 0, profiles_of(BUNDLED)["gpt-5.5"]
    )
    kept = (
        "shell_type",
        "truncation_policy",
        "default_reasoning_summary",
        "base_instructions",
        "model_messages",
        "tool_mode",
    )
    assert {key: made[key] for key in kept} == {key: theirs[key] for key in kept}
    assert (made["slug"], made["display_name"], made["context_window"]) == (
        "acme/m",
        "acme/m",
        65_536,
    )
    assert (made["upgrade"], made["service_tiers"]) == (None, [])
    assert made.keys() >= REQUIRED


def test_profiles_are_assigned_by_name() -> None:
    profiles = profiles_of(BUNDLED)
    for chosen, names, slugs in (
        ({"acme/m": "other"}, ["acme/m", "gpt-5.5", "x"], ["other", "gpt-5.5"]),
        ({"*": "gpt-5.5"}, ["x", "other"], ["gpt-5.5", "other"]),
    ):
        found = assign_profiles(profiles, chosen, names)
        assert [profile["slug"] for profile in found.values()] == slugs
    with pytest.raises(ValueError, match=r"no profile gpt-7 .*gpt-5\.5, other"):
        assign_profiles(profiles, {"x": "gpt-7"}, [])


async def test_frontend_serves_the_configured_profiles(tmp_path: Path) -> None:
    file = tmp_path / "bundled.json"
    file.write_text(json.dumps(BUNDLED))
    config = FrontendConfig(codex_models_file=str(file), codex_profiles={MODEL: "gpt-5.5"})
    async with serving(FakeGateway(), config) as served, ClientSession(served.url) as http:
        models = (await (await http.get("/codex/models.json?client_version=0.169.0")).json())[
            "models"
        ]
    assert {model["slug"]: model["base_instructions"] for model in models} == {
        MODEL: "their instructions",
        "claude-alias": INSTRUCTIONS,
    }


@pytest.mark.parametrize("content", ["not json", '{"models": [1]}'])
async def test_error_names_an_unusable_profile_file(tmp_path: Path, content: str) -> None:
    file = tmp_path / "bundled.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"bundled\.json"):
        async with serving(
            config=FrontendConfig(codex_models_file=str(file), codex_profiles={"x": "gpt-5.5"})
        ):
            pass
