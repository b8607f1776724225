"""Served models as documents: one answer that Anthropic's SDKs, OpenAI's SDKs and Codex all read (apis.md 0.15)."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from schemas.control import ModelCard
from schemas.errors import Invalid

MAX_LIMIT = 1000
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_INSTRUCTIONS = (
    "You are a coding agent. You and the user share one workspace, and you work on it with the tools that you are "
    "given. Look before you change: read the files that matter, and find out how the project builds and tests itself. "
    "Keep to the style of the code around you, and change no more than the task needs. Run what shows that the change "
    "works. When you are done, say in a few sentences what you changed, what you checked, and what is left open."
)


def entry(card: ModelCard, name: str) -> dict[str, Any]:
    """A model under one of its names, with the fields of both families."""
    return {
        "id": name,
        "type": "model",
        "object": "model",
        "display_name": name,
        "created": card.created,
        "created_at": datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "owned_by": "turnwire",
        "root": card.name,
        "lifecycle": "active",
        "line": None,
        "deprecated_at": None,
        "retires_at": None,
        "max_input_tokens": card.max_model_len or None,
        "max_tokens": card.max_model_len or None,
        "max_model_len": card.max_model_len or None,
        "capabilities": _capabilities(card),
    }


def codex_entry(card: ModelCard, name: str) -> dict[str, Any]:
    """A model as Codex' catalogue has it; every required field, since one bad entry fails the whole catalogue."""
    efforts = _EFFORTS[:3] if card.reasoning else ()
    codex: dict[str, Any] = {
        "slug": name,
        "display_name": name,
        "description": f"{card.name}, served by Turnwire",
        "supported_reasoning_levels": [{"effort": effort, "description": f"{effort} effort"} for effort in efforts],
        "shell_type": "unified_exec",
        "visibility": "list",
        "supported_in_api": True,
        "priority": 0,
        "support_verbosity": False,
        "truncation_policy": {"mode": "tokens", "limit": 10000},
        "experimental_supported_tools": [],
        "input_modalities": ["text"],
        "base_instructions": _INSTRUCTIONS,
    }
    if efforts:
        codex["default_reasoning_level"] = "medium"
    if card.max_model_len:
        codex["context_window"] = card.max_model_len
    return codex


def listing(cards: Sequence[ModelCard], query: Mapping[str, str], lifecycles: Sequence[str]) -> dict[str, Any]:
    """The list, one entry for each name, cut to the page that the query asks for. Raises Invalid for a bad query.

    Without `limit` it is whole: OpenAI's clients know no pages.
    """
    named = [(card, name) for card in cards for name in dict.fromkeys((card.name, *card.aliases))]
    if lifecycles and "active" not in lifecycles:
        named = []
    named, more = _page(named, query)
    data = [entry(card, name) for card, name in named]
    return {
        "object": "list",
        "data": data,
        "has_more": more,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "models": [codex_entry(card, name) for card, name in named],
    }


def _page(named: list[tuple[ModelCard, str]], query: Mapping[str, str]) -> tuple[list[tuple[ModelCard, str]], bool]:
    limit = _limit(query.get("limit"))
    names = [name for _, name in named]
    after, before = query.get("after_id"), query.get("before_id")
    if after in names:
        named = named[names.index(after) + 1 :]
    elif before in names:
        named = named[: names.index(before)]
        return named[-limit:], len(named) > limit
    return named[:limit], len(named) > limit


def _limit(given: str | None) -> int:
    if given is None:
        return MAX_LIMIT
    if not given.isdecimal() or not 1 <= int(given) <= MAX_LIMIT:
        raise Invalid(f"limit: Input should be a valid integer from 1 to {MAX_LIMIT}", param="limit")
    return int(given)


def _capabilities(card: ModelCard) -> dict[str, Any]:
    no, thinks = {"supported": False}, {"supported": card.reasoning}
    return {
        "batch": no,
        "citations": no,
        "code_execution": no,
        "image_input": no,
        "pdf_input": no,
        "structured_outputs": {"supported": "guided" in card.features},
        "context_management": no,
        "effort": {**thinks, **dict.fromkeys(_EFFORTS, thinks)},
        "server_tools": {**no, "web_search": no, "code_execution": no},
        "thinking": {
            **thinks,
            "types": {
                "adaptive": {"supported": True},
                "between_tools": {"supported": True},
                "disabled": {"supported": True},
                "enabled": {"supported": True},
            },
        },
    }
