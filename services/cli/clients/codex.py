"""Codex (apis.md D.1, D.4; clients.md 4): a profile of its own beside config.toml, and the model catalogue."""

from typing import Any

from services.cli.clients.base import PROVIDER, BadRequest, Plan, Settings, Target, place

CATALOGUE_PATH = "/codex/models.json"


def plan(target: Target) -> Plan:
    """`$CODEX_HOME/turnwire.config.toml`, which `codex --profile turnwire` lays over the user's own settings, so that
    nothing of those changes; with `default` the same in config.toml. Raises BadRequest for an API that it has not."""
    if target.api not in (None, "responses"):
        raise BadRequest(f"Codex speaks Responses, not {target.api}")
    folder = place(target, "~/.codex", variable="CODEX_HOME")
    catalogue = f"{folder}/{PROVIDER}-models.json"
    top: dict[str, Any] = {
        "model": target.model.id,
        "model_provider": PROVIDER,
        # The hosted tool of OpenAI's; nobody would run it.
        "web_search": "disabled",
    }
    # Without some key Codex 0.169 does not ask for the catalogue at `model_catalog_url`.
    provider: dict[str, Any] = {
        "name": "Turnwire",
        "base_url": f"{target.url}/v1",
        "wire_api": "responses",
        "experimental_bearer_token": target.token,
        "supports_websockets": target.websockets,
    }
    files = []
    remove: dict[str, Any] = {"model_catalog_json": catalogue}
    if target.catalogue_file:
        remove = {"model_providers": {PROVIDER: {"model_catalog_url": None}}}
        top["model_catalog_json"] = catalogue
        files.append(Settings(catalogue, "json", {"models": target.catalogue}, whole=True))
    else:
        provider["model_catalog_url"] = target.url + CATALOGUE_PATH
    name = "config.toml" if target.default else f"{PROVIDER}.config.toml"
    values = {**top, "model_providers": {PROVIDER: provider}}
    files.append(Settings(f"{folder}/{name}", "toml", values, remove=remove))
    return Plan(
        client="Codex",
        files=files,
        start="codex" if target.default else f"codex --profile {PROVIDER}",
        notes=["The catalogue is a file: make it again when the model changes."] if target.catalogue_file else [],
    )
