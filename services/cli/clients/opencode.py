"""opencode (clients.md 5): a provider in opencode.json, over Messages unless another API is asked for."""

from typing import Any

from services.cli.clients.base import PROVIDER, Api, Plan, Settings, Target, place
from services.cli.served import ServedModel

_PACKAGES: dict[Api, str] = {
    "messages": "@ai-sdk/anthropic",
    "responses": "@ai-sdk/openai",
    "chat": "@ai-sdk/openai-compatible",
}
LONGEST = 32_000
"""It compacts at window - this (clients.md 5), and asks for no more at once."""


def plan(target: Target) -> Plan:
    """A provider with every served name. Messages keeps thoughts, with their seals, in their places."""
    base = target.env.get("XDG_CONFIG_HOME")
    path = f"{place(target, f'{base}/opencode' if base else '~/.config/opencode')}/opencode.json"
    if target.folder is None:
        path = target.env.get("OPENCODE_CONFIG") or path
    chosen = f"{PROVIDER}/{target.model.id}"
    provider = {
        "npm": _PACKAGES[target.api or "messages"],
        "name": "Turnwire",
        "options": {"baseURL": f"{target.url}/v1", "apiKey": target.token},
        "models": {model.id: _model(model) for model in target.models},
    }
    values: dict[str, Any] = {"provider": {PROVIDER: provider}}
    defaults = {"model": chosen, "small_model": chosen}
    return Plan(
        client="opencode",
        files=[
            Settings(
                path,
                "json",
                values | (defaults if target.default else {}),
                {"$schema": "https://opencode.ai/config.json"} | ({} if target.default else defaults),
            )
        ],
        start=f"opencode -m {chosen}",
    )


def _model(model: ServedModel) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": model.id, "reasoning": model.thinks, "tool_call": True}
    if model.window:
        entry["limit"] = {"context": model.window, "output": min(LONGEST, model.longest, max(1, model.window // 4))}
    return entry
