"""OpenClaw (clients.md 5): a provider in openclaw.json, over Messages unless another API is asked for."""

from typing import Any

from services.cli.clients.base import PROVIDER, Api, Plan, Settings, Target, place
from services.cli.served import ServedModel

_APIS: dict[Api, str] = {
    "messages": "anthropic-messages",
    "responses": "openai-responses",
    "chat": "openai-completions",
}
LONGEST = 32_000
DEFAULT_WINDOW = 131_072
"""OpenClaw wants a number."""


def plan(target: Target) -> Plan:
    """A provider with every served name. Chat would glue thoughts together and lose their order."""
    path = f"{place(target, '~/.openclaw', variable='OPENCLAW_STATE_DIR')}/openclaw.json"
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
    defaults: dict[str, Any] = {"agents": {"defaults": {"model": {"primary": chosen}}}}
    return Plan(
        client="OpenClaw",
        files=[
            Settings(path, "json", values | (defaults if target.default else {}), {} if target.default else defaults)
        ],
        start=f"openclaw agent exec --model {chosen} TASK",
    )


def _model(model: ServedModel) -> dict[str, Any]:
    window = model.window or DEFAULT_WINDOW
    return {
        "id": model.id,
        "name": model.id,
        "reasoning": model.thinks,
        "input": ["text", "image"] if model.can("image_input") else ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": window,
        "maxTokens": min(LONGEST, model.longest or window, max(1, window // 4)),
    }
