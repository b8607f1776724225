"""Sets up Hermes Agent with Chat Completions (for Messages it lacks a package): a provider in a
profile `turnwire`."""

from typing import Any

from services.cli.connect.client import PROVIDER, AgentClient, ClientPlan, ClientSettings, Target
from services.cli.connect.server import ServedModel

NEEDS_ANTHROPIC = "Messages needs a package beside Hermes: pip install 'hermes-agent[anthropic]'"


def make_settings(target: Target) -> ClientPlan:
    """Makes `profiles/turnwire/config.yaml`, which `hermes -p turnwire` reads instead of the user's
    config.yaml. With `default`, the same settings go into the user's."""
    folder = target.settings_folder("~/.hermes", "HERMES_HOME")
    api = target.api or "chat"
    provider: dict[str, Any] = {
        "name": "Turnwire",
        "base_url": target.base_url(api),
        "api_key": target.token,
        "api_mode": "anthropic_messages" if api == "messages" else "chat_completions",
        "default_model": target.model.id,
        "models": {model.id: _limits(model) for model in target.models},
    }
    values = {
        "model": {"provider": f"custom:{PROVIDER}", "default": target.model.id},
        "providers": {PROVIDER: provider},
    }
    path = f"{folder}/profiles/{PROVIDER}/config.yaml"
    start = f"hermes -p {PROVIDER}"
    if target.default:
        path = f"{folder}/config.yaml"
        start = "hermes"
    notes = [NEEDS_ANTHROPIC] if api == "messages" else []
    return ClientPlan(files=[ClientSettings(path, "yaml", values)], start=start, notes=notes)


def _limits(model: ServedModel) -> dict[str, Any]:
    return {"context_length": model.window} if model.window else {}


CLIENT = AgentClient("Hermes Agent", make_settings, apis=("messages", "chat"))
