"""Describes a served model as an entry of Codex' model catalogue.

The entry decides Codex' behaviour: prompt, tools, how much of a tool's output the model sees, when
it compacts. For a model without an entry Codex uses a poor profile: no apply_patch, no tool_search,
10,000 bytes of tool output instead of 10,000 tokens, and a context window of 272,000 tokens.

One bad entry fails the whole catalogue, and in old versions so does a missing field. So entries
have every field that any version requires, and no effort that only newer versions accept, unless
the model has it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from schemas.control import VISION, ModelCard
from services.frontend.apis.models.codex_instructions import INSTRUCTIONS

Profile: TypeAlias = Mapping[str, Any]
"""A catalogue entry of Codex itself, as `codex debug models --bundled` prints it."""

OUTPUT_RESERVE = 20_000
"""Tokens of the window that are kept free for an answer, at most a quarter: Codex does not limit an
answer's size."""
_LEVELS = {
    "minimal": "Answers at once, with hardly a thought",
    "low": "Thinks little; for plain tasks",
    "medium": "Thinks as much as most tasks need",
    "high": "Thinks long; for hard problems",
    "xhigh": "Thinks very long; for the hardest problems",
    "max": "Thinks as long as it can",
}
_DEFAULTS: Profile = {
    "shell_type": "unified_exec",
    "visibility": "list",
    "supported_in_api": True,
    "additional_speed_tiers": [],
    "service_tiers": [],
    "default_service_tier": None,
    "availability_nux": None,
    "upgrade": None,
    "model_messages": None,
    "include_skills_usage_instructions": True,
    "include_plugin_usage_instructions": True,
    "include_apps_usage_instructions": False,
    "default_reasoning_summary": "auto",
    "support_verbosity": True,
    "default_verbosity": "low",
    "apply_patch_tool_type": "freeform",
    "web_search_tool_type": "text",
    "truncation_policy": {"mode": "tokens", "limit": 10_000},
    "effective_context_window_percent": 95,
    "experimental_supported_tools": [],
    "supports_image_detail_original": False,
    "supports_search_tool": True,
    "supports_experimental_context": False,
    "use_responses_lite": False,
    "supports_reasoning_effort_updates": False,
    "base_instructions": INSTRUCTIONS,
    # Required before 0.1xx, unused since.
    "supports_parallel_tool_calls": True,
    "minimal_client_version": "0.0.1",
    "reasoning_summary_format": "none",
    "prefer_websockets": False,
}
_HOSTED: Profile = {
    "upgrade": None,
    "availability_nux": None,
    "additional_speed_tiers": [],
    "service_tiers": [],
}
"""Fields of Codex' own entries that describe OpenAI's service."""
_SERVED = (
    "slug",
    "display_name",
    "description",
    "priority",
    "supported_reasoning_levels",
    "default_reasoning_level",
    "supports_reasoning_summaries",
    "input_modalities",
    "context_window",
    "max_context_window",
    "auto_compact_token_limit",
)
"""Fields that describe the served model in every profile."""


def catalogue(
    entries: Iterable[tuple[ModelCard, str]], profiles: Mapping[str, Profile] | None = None
) -> dict[str, Any]:
    """The document for `model_catalog_url` and `model_catalog_json`: an entry for each name, in
    order.

    `profiles`: entries of Codex itself to use instead of ours, by name.
    """
    profiles = profiles or {}
    return {
        "models": [
            entry(card, name, index, profiles.get(name))
            for index, (card, name) in enumerate(entries)
        ]
    }


def entry(
    card: ModelCard, name: str, priority: int = 0, profile: Profile | None = None
) -> dict[str, Any]:
    """The entry for one name of a model. The model's windows and efforts replace those of
    `profile`."""
    efforts = levels(card)
    window = card.max_model_len or None
    served = {
        "slug": name,
        "display_name": name,
        "description": f"{card.served_name}, served by Turnwire",
        "priority": priority,
        "supported_reasoning_levels": [
            {"effort": level, "description": _LEVELS[level]} for level in efforts
        ],
        "default_reasoning_level": default_level(efforts),
        "supports_reasoning_summaries": card.reasoning,
        "input_modalities": ["text", "image"] if VISION in card.features else ["text"],
        "context_window": window,
        "max_context_window": window,
        "auto_compact_token_limit": None if window is None else compact_at(window),
    }
    return with_profile(served, profile)


def with_profile(served: Mapping[str, Any], profile: Profile | None) -> dict[str, Any]:
    """An entry of this server with another profile: one of Codex itself, or None for ours."""
    model_fields = {name: served[name] for name in _SERVED if name in served}
    base = _DEFAULTS
    if profile is not None:
        base = {**_DEFAULTS, "model_messages": None, **profile, **_HOSTED}
    entry = {**base, **model_fields}
    if not model_fields.get("supports_reasoning_summaries"):
        entry["default_reasoning_summary"] = "none"
    return entry


def levels(card: ModelCard) -> list[str]:
    """The efforts to choose from. A template that only turns thinking on and off has one."""
    if not card.reasoning and not card.efforts:
        return []
    chosen = [level for level in card.efforts if level in _LEVELS]
    if "max" in chosen and "xhigh" not in chosen:
        # Every version of Codex accepts `xhigh`, and the preprocessor maps it to the nearest level:
        # `max`.
        chosen[chosen.index("max")] = "xhigh"
    return chosen or ["medium"]


def default_level(efforts: list[str]) -> str:
    """`medium` if the model has it, else the middle one. Old versions require a level even for
    models without levels."""
    if not efforts:
        return "none"
    return "medium" if "medium" in efforts else efforts[len(efforts) // 2]


def compact_at(window: int) -> int:
    """The tokens at which Codex compacts: 90 % of the window as in Codex, or less to leave room for
    one answer."""
    return min(window * 9 // 10, window - min(OUTPUT_RESERVE, window // 4))


def read_profiles(path: str | None, slugs: Mapping[str, str]) -> dict[str, Profile]:
    """Reads the entries of Codex itself, by slug, from its models file; none without a file. Raises
    OSError, and ValueError for another document or for one of `slugs` without an entry."""
    profiles = {}
    if path:
        profiles = profiles_of(msgspec.json.decode(Path(path).read_bytes()))
    assign_profiles(profiles, slugs, [])
    return profiles


def profiles_of(document: object) -> dict[str, Profile]:
    """The entries of a catalogue by slug. Raises ValueError for a document that is not a
    catalogue."""
    models = document.get("models") if isinstance(document, dict) else None
    if not isinstance(models, list) or not models:
        raise ValueError(
            'not a Codex catalogue: want {"models": [...]}, as `codex debug models --bundled` '
            "prints it"
        )
    profiles: dict[str, Profile] = {}
    for model in models:
        if not isinstance(model, dict) or not isinstance(model.get("slug"), str):
            raise ValueError("not a Codex catalogue: each of its models has a slug")
        profiles[model["slug"]] = model
    return profiles


def assign_profiles(
    profiles: Mapping[str, Profile], slugs: Mapping[str, str], names: Iterable[str]
) -> dict[str, Profile]:
    """The entries of Codex itself for these names: the entry configured for the name, else the
    entry with the name, else the entry configured for `*`. Raises ValueError for a configured slug
    without an entry."""
    for slug in slugs.values():
        if slug not in profiles:
            listed = f"in the Codex catalogue, which has: {', '.join(profiles)}"
            raise ValueError(
                f"there is no profile {slug} {listed if profiles else 'without codex_models_file'}"
            )
    chosen = {
        name: slugs.get(name) or (name if name in profiles else slugs.get("*")) for name in names
    }
    return {name: profiles[slug] for name, slug in chosen.items() if slug is not None}
