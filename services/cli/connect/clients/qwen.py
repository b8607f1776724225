"""Sets up qwen-code with Chat Completions: a provider in settings.json (with Responses, reasoning
becomes text)."""

import shlex
from typing import Any

from services.cli.connect.client import PROVIDER, AgentClient, ClientPlan, ClientSettings, Target
from services.cli.connect.server import ServedModel

KEY = "TURNWIRE_API_KEY"
"""The variable from which qwen-code reads the key. `env` in settings.json sets it."""
_NEW_FILE = {"$version": 4}
"""The version of qwen-code's settings, from 0.24.4 (`SETTINGS_VERSION`). At its start it writes a
file without one again, and then all users can read it. An older file must keep its own version, by
which qwen-code converts it."""


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
    folder = target.settings_folder("~/.qwen", "QWEN_HOME")
    settings = ClientSettings(f"{folder}/settings.json", "json", values, new_file=_NEW_FILE)
    start = "qwen" if target.default else f"qwen --auth-type openai -m {target.model_word}"
    note = (
        "When qwen-code changes a setting, it writes this file again so that all users of the "
        f"machine can read it, with the key: `chmod 700 {shlex.quote(folder)}` keeps others out."
    )
    return ClientPlan(files=[settings], start=start, notes=[note])


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
