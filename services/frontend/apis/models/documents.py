"""Describes the served models in one document for Anthropic's SDKs, OpenAI's SDKs, Codex and vLLM's
clients."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, TypeAlias

from schemas.control import THINKING_BUDGET, VISION, ModelCard
from schemas.errors import Invalid
from services.frontend.apis.models import codex_profile
from services.frontend.apis.models.codex_profile import Profile

MAX_LIMIT = 1000
_EFFORTS = ("low", "medium", "high", "xhigh", "max")

_BUDGET_FIELDS = {
    "messages": ["thinking.budget_tokens", "output_config.effort"],
    "chat": [
        "reasoning.max_tokens",
        "thinking.budget_tokens",
        "thinking_budget",
        "thinking_token_budget",
        "reasoning_effort",
    ],
    "responses": ["reasoning.max_tokens", "reasoning.effort"],
}
"""The fields that limit reasoning tokens; the last one where the operator has budgets for levels of
effort."""
NamedModel: TypeAlias = tuple[ModelCard, str]
"""A model under one of its names."""


def entry(card: ModelCard, name: str, hosted: Collection[str] = ()) -> dict[str, Any]:
    """A model under one of its names, with the fields of all families. `hosted`: the kinds of
    hosted tools served."""
    window = card.max_model_len or None
    longest = card.max_output_tokens or window
    return {
        "id": name,
        "type": "model",
        "object": "model",
        "display_name": name,
        "description": f"{card.served_name}, served by Turnwire",
        "created": card.created,
        "created_at": datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "owned_by": "turnwire",
        "root": card.name,
        "parent": None if name == card.name else card.name,
        "permission": [_permission(card, name)],
        "lifecycle": "active",
        "line": None,
        "deprecated_at": None,
        "retires_at": None,
        "max_input_tokens": window,
        "max_tokens": longest,
        "max_model_len": window,
        "context_window": window,
        "max_output_tokens": longest,
        "capabilities": _capabilities(card, hosted),
    }


def names(cards: Sequence[ModelCard]) -> list[NamedModel]:
    """Every model under each of its names, the model's own first. An alias of several models is
    listed once, with the model that gets most new sessions. The names of models precede
    those of adapters."""
    cards_by_name: dict[str, ModelCard] = {}
    adapted = [card for card in cards if card.adapter]
    for group in ([card for card in cards if not card.adapter], adapted):
        cards_by_name = {card.served_name: card for card in group} | cards_by_name
        for card in sorted(group, key=attrgetter("weight"), reverse=True):
            for name in card.aliases:
                cards_by_name.setdefault(name, card)
    models = [
        (card, name) for card in cards for name in dict.fromkeys((card.served_name, *card.aliases))
    ]
    return [(card, name) for card, name in models if cards_by_name[name] is card]


def listing(
    models: Sequence[NamedModel],
    query: Mapping[str, str],
    lifecycles: Sequence[str] = (),
    profiles: Mapping[str, Profile] | None = None,
    hosted: Collection[str] = (),
) -> dict[str, Any]:
    """The list, one entry for each name, cut to the requested page. Raises Invalid for a bad query.

    Without `limit` the list is complete: OpenAI's clients use no pages. `profiles`: see
    `codex_profile.catalogue`, `hosted`: see `entry`.
    """
    if lifecycles and "active" not in lifecycles:
        models = []
    page, more = _page(models, query)
    data = [entry(card, name, hosted) for card, name in page]
    return {
        "object": "list",
        "data": data,
        "has_more": more,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        **codex_profile.catalogue(page, profiles),
    }


def _page(
    models: Sequence[NamedModel], query: Mapping[str, str]
) -> tuple[Sequence[NamedModel], bool]:
    limit = _limit(query.get("limit"))
    ids = [name for _, name in models]
    after = query.get("after_id")
    before = query.get("before_id")
    if after in ids:
        models = models[ids.index(after) + 1 :]
    elif before in ids:
        models = models[: ids.index(before)]
        return models[-limit:], len(models) > limit
    return models[:limit], len(models) > limit


def _limit(text: str | None) -> int:
    if text is None:
        return MAX_LIMIT
    if not text.isdecimal() or not 1 <= int(text) <= MAX_LIMIT:
        raise Invalid(
            f"limit: Input should be a valid integer from 1 to {MAX_LIMIT}", param="limit"
        )
    return int(text)


def _permission(card: ModelCard, name: str) -> dict[str, Any]:
    """A former member of OpenAI's models that clients of vLLM may read."""
    return {
        "id": f"modelperm-{name}",
        "object": "model_permission",
        "created": card.created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": "logprobs" in card.features,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }


def _capabilities(card: ModelCard, hosted: Collection[str]) -> dict[str, Any]:
    search = {"supported": "web_search" in hosted}
    no = {"supported": False}
    yes = {"supported": True}
    thinks = {"supported": card.reasoning}
    budgets = THINKING_BUDGET in card.features
    last = None if card.effort_budgets else -1
    enforced = {api: fields[:last] if budgets else [] for api, fields in _BUDGET_FIELDS.items()}
    return {
        "batch": no,
        "citations": no,
        "code_execution": no,
        "image_input": {"supported": VISION in card.features},
        "pdf_input": no,
        "structured_outputs": {"supported": "guided" in card.features},
        "context_management": yes
        | dict.fromkeys(
            ("clear_tool_uses_20250919", "clear_thinking_20251015", "compact_20260112"), yes
        ),
        "compaction": {**yes, "summarize": yes},
        "effort": {"supported": bool(card.efforts)}
        | {level: {"supported": level in card.efforts} for level in _EFFORTS},
        "server_tools": {**search, "web_search": search, "code_execution": no},
        "thinking": {
            **thinks,
            "types": {
                "adaptive": thinks,
                "between_tools": {"supported": card.switchable} if card.reasoning else yes,
                "disabled": {"supported": card.switchable} if card.reasoning else yes,
                "enabled": thinks,
            },
            "budgets": {"supported": budgets, "enforced": enforced, "effort": card.effort_budgets},
        },
    }
