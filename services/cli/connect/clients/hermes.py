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
    messages = target.api == "messages"
    provider: dict[str, Any] = {
        "name": "Turnwire",
        "base_url": target.url if messages else f"{target.url}/v1",
        "api_key": target.token,
        "api_mode": "anthropic_messages" if messages else "chat_completions",
        "default_model": target.model.id,
        "models": {model.id: _limits(model) for model in target.models},
    }
    values = {
        "model": {"provider": f"custom:{PROVIDER}", "default": target.model.id},
        "providers": {PROVIDER: provider},
    }
    path = (
        f"{folder}/config.yaml" if target.default else f"{folder}/profiles/{PROVIDER}/config.yaml"
    )
    return ClientPlan(
        files=[ClientSettings(path, "yaml", values)],
        start="hermes" if target.default else f"hermes -p {PROVIDER}",
        notes=[NEEDS_ANTHROPIC] if messages else [],
    )


def _limits(model: ServedModel) -> dict[str, Any]:
    return {"context_length": model.window} if model.window else {}


CLIENT = AgentClient("Hermes Agent", make_settings, apis=("messages", "chat"))
