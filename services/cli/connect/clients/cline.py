"""Sets up the CLI of Cline with Chat Completions: the provider `openai-compatible` in
providers.json."""

from typing import Any

from services.cli.connect.client import AgentClient, ClientPlan, ClientSettings, Target

PROVIDER_ID = "openai-compatible"
"""Cline accepts no other name for a provider with an address."""

_NEVER = "1970-01-01T00:00:00.000Z"
"""Cline requires the time of the last change, and shows it."""


def make_settings(target: Target) -> ClientPlan:
    """Makes the provider. With `default`, or if none was used before, Cline starts with it."""
    folder = target.settings_folder("~/.cline/data/settings")
    path = f"{folder}/providers.json"
    if target.folder is None:
        path = target.env.get("CLINE_PROVIDER_SETTINGS_PATH") or path
    settings: dict[str, Any] = {
        "provider": PROVIDER_ID,
        "apiKey": target.token,
        "model": target.model.id,
        "baseUrl": f"{target.url}/v1",
    }
    if target.model.window:
        settings["contextWindow"] = target.model.window
    entry = {"settings": settings, "tokenSource": "manual"}
    values: dict[str, Any] = {"version": 1, "providers": {PROVIDER_ID: entry}}
    if_absent: dict[str, Any] = {"modes": {}, "providers": {PROVIDER_ID: {"updatedAt": _NEVER}}}
    chosen = {"lastUsedProvider": PROVIDER_ID}
    if target.default:
        values |= chosen
    else:
        if_absent |= chosen
    return ClientPlan(
        [ClientSettings(path, "json", values, if_absent)],
        start=f"cline -P {PROVIDER_ID} -m {target.model_word}",
    )


CLIENT = AgentClient("Cline", make_settings, apis=("chat",))
