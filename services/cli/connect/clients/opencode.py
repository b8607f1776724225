"""Sets up opencode: a provider in opencode.json, by default with Messages (keeps sealed reasoning
in order)."""

from typing import Any

from services.cli.connect.client import (
    PROVIDER,
    AgentClient,
    ApiName,
    ClientPlan,
    ClientSettings,
    Target,
)
from services.cli.connect.server import ServedModel

_PACKAGES: dict[ApiName, str] = {
    "messages": "@ai-sdk/anthropic",
    "responses": "@ai-sdk/openai",
    "chat": "@ai-sdk/openai-compatible",
}


def make_settings(target: Target) -> ClientPlan:
    """Makes a provider with all served models."""
    return plan_for(target, "opencode", "https://opencode.ai/config.json")


def plan_for(target: Target, program: str, schema: str) -> ClientPlan:
    """Makes the settings of opencode, or of a program that has the same ones under its own name."""
    base = target.env.get("XDG_CONFIG_HOME")
    folder = f"{base}/{program}" if base else f"~/.config/{program}"
    path = f"{target.settings_folder(folder)}/{program}.json"
    if target.folder is None:
        path = target.env.get(f"{program.upper()}_CONFIG") or path
    chosen = f"{PROVIDER}/{target.model.id}"
    provider = {
        "npm": _PACKAGES[target.api or "messages"],
        "name": "Turnwire",
        "options": {"baseURL": f"{target.url}/v1", "apiKey": target.token},
        "models": {model.id: _model(model) for model in target.models},
    }
    values: dict[str, Any] = {"provider": {PROVIDER: provider}}
    default = {"model": chosen, "small_model": chosen}
    if_absent = {"$schema": schema}
    if target.default:
        values |= default
    else:
        if_absent |= default
    return ClientPlan(
        files=[ClientSettings(path, "json", values, if_absent)],
        start=f"{program} -m {PROVIDER}/{target.model_word}",
    )


def _model(model: ServedModel) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": model.id,
        "reasoning": model.supports("thinking"),
        "tool_call": True,
    }
    if model.window:
        entry["limit"] = {"context": model.window, "output": model.output_in(model.window)}
    if model.supports("image_input"):
        entry |= {
            "attachment": True,
            "modalities": {"input": ["text", "image"], "output": ["text"]},
        }
    return entry


CLIENT = AgentClient("opencode", make_settings)
