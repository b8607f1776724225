"""Sets up qwen-code with Chat Completions: a provider in settings.json (with Responses, reasoning
becomes text)."""

from typing import Any

from services.cli.connect.client import PROVIDER, AgentClient, ClientPlan, ClientSettings, Target
from services.cli.connect.server import ServedModel

KEY = "TURNWIRE_API_KEY"
"""The variable from which qwen-code reads the key. `env` in settings.json sets it."""


def make_settings(target: Target) -> ClientPlan:
    """Makes a provider with all served models. With `default`, sets the model to start with."""
    values: dict[str, Any] = {
        "env": {KEY: target.token},
        "modelProviders": {
            PROVIDER: [_model(model, f"{target.url}/v1") for model in target.models]
        },
        "providerProtocol": {PROVIDER: "openai"},
    }
    if target.default:
        values |= {
            "security": {"auth": {"selectedType": "openai"}},
            "model": {"name": target.model.id},
        }
    path = f"{target.settings_folder('~/.qwen', 'QWEN_HOME')}/settings.json"
    start = "qwen" if target.default else f"qwen --auth-type openai -m {target.model_word}"
    return ClientPlan(files=[ClientSettings(path, "json", values)], start=start)


def _model(model: ServedModel, base: str) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": model.id,
        "name": f"{model.id} ({PROVIDER})",
        "envKey": KEY,
        "baseUrl": base,
    }
    if model.window:
        entry["generationConfig"] = {"contextWindowSize": model.window}
    return entry


CLIENT = AgentClient("qwen-code", make_settings, apis=("chat",))
