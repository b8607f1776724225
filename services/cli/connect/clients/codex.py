"""Sets up Codex with Responses: a profile beside config.toml, and the model catalogue."""

from typing import Any

from services.cli.connect.client import PROVIDER, AgentClient, ClientPlan, ClientSettings, Target

CATALOGUE_PATH = "/codex/models.json"
NO_SEARCH = (
    "Web search is off, because this server has no provider for it (--web-provider, "
    "docs/hosted-tools.md): connect again when it has one."
)
NO_COMPRESSION = (
    "Codex compresses requests only for OpenAI's own service with a ChatGPT login: no setting "
    "changes that."
)


def make_settings(target: Target) -> ClientPlan:
    """Makes `$CODEX_HOME/turnwire.config.toml`, which `codex --profile turnwire` reads in addition
    to the user's config.toml. With `default`, the same settings go into config.toml."""
    folder = target.settings_folder("~/.codex", "CODEX_HOME")
    catalogue = f"{folder}/{PROVIDER}-models.json"
    searches = target.model.supports("server_tools", "web_search")
    top: dict[str, Any] = {
        "model": target.model.id,
        "model_provider": PROVIDER,
        "web_search": "live" if searches else "disabled",
    }
    provider: dict[str, Any] = {
        "name": "Turnwire",
        "base_url": f"{target.url}/v1",
        "wire_api": "responses",
        # without a token, Codex 0.169 does not read `model_catalog_url`
        "experimental_bearer_token": target.token,
        "supports_websockets": target.websockets,
    }
    files = []
    remove: dict[str, Any] = {"model_catalog_json": catalogue}
    if target.catalogue_file:
        remove = {"model_providers": {PROVIDER: {"model_catalog_url": None}}}
        top["model_catalog_json"] = catalogue
        files.append(ClientSettings(catalogue, "json", {"models": target.catalogue}, whole=True))
    else:
        provider["model_catalog_url"] = target.url + CATALOGUE_PATH
    name = "config.toml" if target.default else f"{PROVIDER}.config.toml"
    values = {**top, "model_providers": {PROVIDER: provider}}
    files.append(ClientSettings(f"{folder}/{name}", "toml", values, remove=remove))
    start = "codex" if target.default else f"codex --profile {PROVIDER}"
    notes = [NO_COMPRESSION]
    if not searches:
        notes.insert(0, NO_SEARCH)
    if target.catalogue_file:
        notes.append("The catalogue is a file: write it again when the model changes.")
    return ClientPlan(files=files, start=start, notes=notes)


CLIENT = AgentClient("Codex", make_settings, apis=("responses",))
