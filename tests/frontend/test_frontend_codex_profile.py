"""Tests Codex' catalogue: required fields of every version, the model's limits, and profiles of
Codex itself."""

import json
from pathlib import Path
from typing import Any

from schemas.control import ModelCard
from services.frontend.apis.models.codex_instructions import INSTRUCTIONS
from services.frontend.apis.models.codex_profile import entry
from services.runtime.config.frontend import FrontendConfig
from tests.kit.bodies import MODEL
from tests.kit.every import for_rows
from tests.kit.frontend import CARD, serving

# By version: the fields without a default in Codex' own type (0.72, 0.99, 0.169).
REQUIRED = {
    "slug", "display_name", "supported_reasoning_levels", "shell_type", "visibility", "supported_in_api", "priority",
    "support_verbosity", "truncation_policy", "experimental_supported_tools", "base_instructions",
    "default_reasoning_level", "supports_reasoning_summaries", "supports_parallel_tool_calls", "minimal_client_version",
    "reasoning_summary_format", "upgrade", "default_verbosity", "apply_patch_tool_type", "context_window",
}  # fmt: skip
THEIRS: dict[str, Any] = {
    "slug": "gpt-5.5",
    "shell_type": "shell_command",
    "context_window": 272_000,
    "base_instructions": "their instructions",
    "model_messages": {"instructions_template": "their template"},
}
BUNDLED = {"models": [THEIRS, {"slug": "other", "base_instructions": "o"}]}


def card(**fields: Any) -> ModelCard:
    return ModelCard("acme/m", **fields)


@for_rows(
    [
        (card(reasoning=True), ["medium"], "medium"),
        (card(reasoning=True, efforts=["low", "high", "max"]), ["low", "high", "xhigh"], "high"),
    ]
)
def test_entry_has_required_fields_and_the_levels_of_the_template(
    model: ModelCard, levels: list[str], default: str
) -> None:
    made = entry(model, "name", 3)
    assert made.keys() >= REQUIRED
    assert (made["slug"], made["priority"], made["shell_type"]) == ("name", 3, "unified_exec")
    assert made["truncation_policy"] == {"mode": "tokens", "limit": 10_000}
    assert (made["apply_patch_tool_type"], made["supports_search_tool"]) == ("freeform", True)
    assert made["base_instructions"] == INSTRUCTIONS
    assert [level["effort"] for level in made["supported_reasoning_levels"]] == levels
    assert made["default_reasoning_level"] == default
    assert made["supports_reasoning_summaries"] is model.reasoning
    assert made["default_reasoning_summary"] == ("auto" if model.reasoning else "none")


def test_compaction_leaves_room_for_an_answer() -> None:
    for window, threshold in ((272_000, 244_800), (32_768, 24_576)):
        made = entry(card(max_model_len=window), "x")
        assert (made["context_window"], made["max_context_window"]) == (window, window)
        assert made["auto_compact_token_limit"] == threshold


async def test_frontend_serves_the_configured_profiles(tmp_path: Path) -> None:
    file = tmp_path / "bundled.json"
    file.write_text(json.dumps(BUNDLED))
    config = FrontendConfig(codex_models_file=str(file), codex_profiles={MODEL: "gpt-5.5"})
    async with serving(config=config) as served:
        catalogue = (await served.get("/codex/models.json?client_version=0.169.0")).json
    for model in catalogue["models"]:
        assert model["context_window"] == CARD.max_model_len
    instructions = {model["slug"]: model["base_instructions"] for model in catalogue["models"]}
    assert instructions == {MODEL: "their instructions", "claude-alias": INSTRUCTIONS}
