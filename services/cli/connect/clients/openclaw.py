"""Sets up OpenClaw: a provider in openclaw.json, by default with Messages (Chat loses the order of
reasoning)."""

from typing import Any

from services.cli.connect.client import PROVIDER, AgentClient, ClientPlan, ClientSettings, Target
from services.cli.connect.clients.pi import APIS, model_entry
from services.cli.connect.server import ServedModel


def make_settings(target: Target) -> ClientPlan:
    """Makes a provider with all served models."""
    path = f"{target.settings_folder('~/.openclaw', 'OPENCLAW_STATE_DIR')}/openclaw.json"
    if target.folder is None:
        path = target.env.get("OPENCLAW_CONFIG_PATH") or path
    api = target.api or "messages"
    chosen = f"{PROVIDER}/{target.model.id}"
    provider = {
        "baseUrl": target.base_url(api),
        "apiKey": target.token,
        "api": APIS[api],
        "models": [_model(model) for model in target.models],
    }
    values: dict[str, Any] = {"models": {"mode": "merge", "providers": {PROVIDER: provider}}}
    default: dict[str, Any] = {"agents": {"defaults": {"model": {"primary": chosen}}}}
    if target.default:
        values |= default
        default = {}
    start = f"openclaw agent exec --model {PROVIDER}/{target.model_word} TASK"
    return ClientPlan(files=[ClientSettings(path, "json", values, default)], start=start)


def _model(model: ServedModel) -> dict[str, Any]:
    return {
        **model_entry(model),
        "name": model.id,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }


CLIENT = AgentClient("OpenClaw", make_settings)
