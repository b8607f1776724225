"""Sets up pi: a provider in models.json, by default with Messages (sends sealed reasoning back in
order)."""

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

APIS: dict[ApiName, str] = {
    "messages": "anthropic-messages",
    "responses": "openai-responses",
    "chat": "openai-completions",
}
DEFAULT_WINDOW = 131_072
"""Used if the window is unknown, because pi requires a number."""


def make_settings(target: Target) -> ClientPlan:
    """Makes a provider with all served models. With `default`, settings.json names the model to
    start with."""
    folder = target.settings_folder("~/.pi/agent", "PI_CODING_AGENT_DIR")
    api = target.api or "messages"
    provider: dict[str, Any] = {
        "baseUrl": target.base_url(api),
        "api": APIS[api],
        "apiKey": target.token,
        "models": [model_entry(model) for model in target.models],
    }
    files = [ClientSettings(f"{folder}/models.json", "json", {"providers": {PROVIDER: provider}})]
    if target.default:
        chosen = {"defaultProvider": PROVIDER, "defaultModel": target.model.id}
        files.append(ClientSettings(f"{folder}/settings.json", "json", chosen))
    return ClientPlan(
        files=files,
        start="pi" if target.default else f"pi --provider {PROVIDER} --model {target.model_word}",
    )


def model_entry(model: ServedModel) -> dict[str, Any]:
    """A model in pi's form."""
    window = model.window or DEFAULT_WINDOW
    return {
        "id": model.id,
        "reasoning": model.supports("thinking"),
        "input": ["text", "image"] if model.supports("image_input") else ["text"],
        "contextWindow": window,
        "maxTokens": model.output_in(window),
    }


CLIENT = AgentClient("pi", make_settings)
