"""OpenClaw: a provider in openclaw.json, over Messages by default (over Chat, the order of reasoning is lost)."""

from typing import Any

from services.cli.connect.client import PROVIDER, Api, Client, Plan, Settings, Target
from services.cli.connect.served import ServedModel

_APIS: dict[Api, str] = {
    "messages": "anthropic-messages",
    "responses": "openai-responses",
    "chat": "openai-completions",
}
LONGEST = 32_000
DEFAULT_WINDOW = 131_072
"""OpenClaw requires a number."""


def make_settings(target: Target) -> Plan:
    """A provider with every served model."""
    path = f"{target.settings_folder('~/.openclaw', 'OPENCLAW_STATE_DIR')}/openclaw.json"
    if target.folder is None:
        path = target.env.get("OPENCLAW_CONFIG_PATH") or path
    api = target.api or "messages"
    chosen = f"{PROVIDER}/{target.model.id}"
    provider = {
        "baseUrl": target.url if api == "messages" else f"{target.url}/v1",
        "apiKey": target.token,
        "api": _APIS[api],
        "models": [_model(model) for model in target.models],
    }
    values: dict[str, Any] = {"models": {"mode": "merge", "providers": {PROVIDER: provider}}}
    default: dict[str, Any] = {"agents": {"defaults": {"model": {"primary": chosen}}}}
    settings = (
        Settings(path, "json", {**values, **default}) if target.default else Settings(path, "json", values, default)
    )
    return Plan(files=[settings], start=f"openclaw agent exec --model {chosen} TASK")


def _model(model: ServedModel) -> dict[str, Any]:
    window = model.window or DEFAULT_WINDOW
    return {
        "id": model.id,
        "name": model.id,
        "reasoning": model.supports("thinking"),
        "input": ["text", "image"] if model.supports("image_input") else ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": window,
        "maxTokens": min(LONGEST, model.longest or window, max(1, window // 4)),
    }


CLIENT = Client("OpenClaw", make_settings)
