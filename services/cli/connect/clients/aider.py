"""Sets up aider with Chat Completions: a configuration file beside the user's, and a file with the
model's limits."""

import shlex
from typing import Any

from services.cli.connect.client import PROVIDER, AgentClient, ClientPlan, ClientSettings, Target


def make_settings(target: Target) -> ClientPlan:
    """Makes `~/.aider.turnwire.conf.yml`, which `aider --config` reads instead of the user's. JSON
    is also YAML."""
    folder = target.settings_folder("~")
    path = f"{folder}/.aider.{PROVIDER}.conf.yml"
    limits = f"{folder}/.aider.{PROVIDER}.metadata.json"
    name = f"openai/{target.model.id}"
    values = {
        "model": name,
        "weak-model": name,
        "openai-api-base": f"{target.url}/v1",
        "openai-api-key": target.token,
        "model-metadata-file": limits,
        "show-model-warnings": False,
    }
    files = [
        ClientSettings(path, "json", values),
        ClientSettings(limits, "json", {name: _limits(target)}),
    ]
    return ClientPlan(files=files, start=f"aider --config {shlex.quote(path)}")


def _limits(target: Target) -> dict[str, Any]:
    model = target.model
    tokens: dict[str, Any] = {}
    if model.window:
        tokens = {"max_input_tokens": model.window, "max_output_tokens": model.longest}
    return {
        **tokens,
        "litellm_provider": "openai",
        "mode": "chat",
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
    }


CLIENT = AgentClient("aider", make_settings, apis=("chat",))
