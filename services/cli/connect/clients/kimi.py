"""Sets up kimi-code: a provider and its models in config.toml, by default with Messages."""

from typing import Any

from services.cli.connect.client import (
    PROVIDER,
    AgentClient,
    ApiName,
    ClientPlan,
    ClientSettings,
    Target,
)
from services.cli.connect.clients.pi import DEFAULT_WINDOW
from services.cli.connect.server import ServedModel

_TYPES: dict[ApiName, str] = {
    "messages": "anthropic",
    "responses": "openai_responses",
    "chat": "openai",
}


def make_settings(target: Target) -> ClientPlan:
    """Makes a provider, and a model `turnwire/NAME` for each served one."""
    provider = {
        "type": _TYPES[target.api or "messages"],
        "base_url": f"{target.url}/v1",
        "api_key": target.token,
    }
    chosen = f"{PROVIDER}/{target.model.id}"
    values: dict[str, Any] = {
        "providers": {PROVIDER: provider},
        "models": {f"{PROVIDER}/{model.id}": _model(model) for model in target.models},
    }
    default = {"default_model": chosen}
    if target.default:
        values, default = default | values, {}
    path = f"{target.settings_folder('~/.kimi-code', 'KIMI_CODE_HOME')}/config.toml"
    return ClientPlan(
        files=[ClientSettings(path, "toml", values, default)],
        start=f"kimi -m {PROVIDER}/{target.model_word}",
    )


def _model(model: ServedModel) -> dict[str, Any]:
    window = model.window or DEFAULT_WINDOW
    capabilities = {
        "thinking": model.supports("thinking"),
        "image_in": model.supports("image_input"),
        "tool_use": True,
    }
    return {
        "provider": PROVIDER,
        "model": model.id,
        "max_context_size": window,
        "max_output_size": model.output_in(window),
        "capabilities": [name for name, supported in capabilities.items() if supported],
    }


CLIENT = AgentClient("kimi-code", make_settings)
