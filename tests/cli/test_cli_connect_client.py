"""The settings of each client for a running server: its limits, the API, the model catalogue."""

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from services.cli.connect.client import BadRequest, ClientPlan, Target, client_names, load_client
from services.cli.connect.server import ServedModel
from tests.kit.every import Cases

LARGE = ServedModel("acme/coder", 131_072, 131_072, capabilities={"thinking": {"supported": True}})
SMALL = ServedModel("small", 32_768, 4096)
SEEING = ServedModel("seeing", 32_768, 4096, capabilities={"image_input": {"supported": True}})
HOME = "/home/u"
URL = "http://host:1"
MODELS = {model.id: model for model in (SMALL, SEEING)}
LIBRARIES = ["ai-sdk", "langchain", "litellm", "pydantic-ai"]
AGENTS = sorted({*client_names()} - {*LIBRARIES})


def target(model: ServedModel = LARGE, **more: Any) -> Target:
    return Target(URL, model, **{"env": {"HOME": HOME}, **more})


def flatten(value: Any, place: str = "") -> dict[str, Any]:
    """A document and all values in it, each by its keys with dots between them."""
    found = {place: value}
    if isinstance(value, dict):
        items: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        items = []
    for key, inner in items:
        found |= flatten(inner, f"{place}.{key}")
    return found


def facts(plan: ClientPlan) -> dict[str, Any]:
    """`exports.NAME`; `N.KEY` for a value that is merged into file N, `absent N.KEY` for one that
    is merged where the file has none."""
    found = {"start": plan.start, "notes": plan.notes, "paths": [file.path for file in plan.files]}
    found |= flatten(plan.exports, "exports")
    for number, file in enumerate(plan.files):
        found |= flatten(file.values, f"{number}") | flatten(file.if_absent, f"absent {number}")
    return found


PLANS = """
claude
    paths: ["/home/u/.claude/settings.json"]
    exports.ANTHROPIC_BASE_URL: "http://host:1"
    exports.ANTHROPIC_DEFAULT_OPUS_MODEL: "acme/coder"
    exports.ANTHROPIC_AUTH_TOKEN: "any"
codex {"key": "k"}
    paths: ["/home/u/.codex/turnwire.config.toml"]
    0.model_providers.turnwire.base_url: "http://host:1/v1"
    0.model_providers.turnwire.model_catalog_url: "http://host:1/codex/models.json"
    0.model_providers.turnwire.experimental_bearer_token: "k"
    0.model: "acme/coder"
    0.web_search: "disabled"
codex {"catalogue_file": true, "catalogue": [{"slug": "x"}], "websockets": true}
    paths: ["/home/u/.codex/turnwire-models.json", "/home/u/.codex/turnwire.config.toml"]
    0: {"models": [{"slug": "x"}]}
    1.model_catalog_json: "/home/u/.codex/turnwire-models.json"
    1.model_providers.turnwire.supports_websockets: true
    1.model_providers.turnwire.model_catalog_url: (absent)
opencode {"others": ["small", "seeing"]}
    paths: ["/home/u/.config/opencode/opencode.json"]
    0.provider.turnwire.npm: "@ai-sdk/anthropic"
    0.provider.turnwire.options.baseURL: "http://host:1/v1"
    0.provider.turnwire.models.acme/coder.limit: {"context": 131072, "output": 32000}
    0.provider.turnwire.models.small.limit: {"context": 32768, "output": 4096}
    0.provider.turnwire.models.seeing.modalities.input: ["text", "image"]
    absent 0.model: "turnwire/acme/coder"
    0.model: (absent)
opencode {"env": {"OPENCODE_CONFIG": "/o.json", "XDG_CONFIG_HOME": "/xdg"}}
    paths: ["/o.json"]
qwen {"key": "k", "others": ["small"]}
    paths: ["/home/u/.qwen/settings.json"]
    0.modelProviders.turnwire.0.id: "acme/coder"
    0.modelProviders.turnwire.0.baseUrl: "http://host:1/v1"
    0.modelProviders.turnwire.0.envKey: "TURNWIRE_API_KEY"
    0.modelProviders.turnwire.0.generationConfig: {"contextWindowSize": 131072}
    0.modelProviders.turnwire.1.id: "small"
    0.env: {"TURNWIRE_API_KEY": "k"}
    0.model: (absent)
pi {"others": ["small"]}
    paths: ["/home/u/.pi/agent/models.json"]
    start: "pi --provider turnwire --model acme/coder"
    0.providers.turnwire.api: "anthropic-messages"
    0.providers.turnwire.baseUrl: "http://host:1"
    0.providers.turnwire.models.0.id: "acme/coder"
cline
    paths: ["/home/u/.cline/data/settings/providers.json"]
    0.providers.openai-compatible.settings.baseUrl: "http://host:1/v1"
    0.providers.openai-compatible.settings.model: "acme/coder"
    0.providers.openai-compatible.settings.contextWindow: 131072
aider
    paths: ["/home/u/.aider.turnwire.conf.yml", "/home/u/.aider.turnwire.metadata.json"]
    start: "aider --config /home/u/.aider.turnwire.conf.yml"
    0.openai-api-base: "http://host:1/v1"
    0.model-metadata-file: "/home/u/.aider.turnwire.metadata.json"
copilot {"key": "k", "websockets": true}
    paths: ["/home/u/.copilot/turnwire.env"]
    start: "copilot"
    exports.COPILOT_PROVIDER_TYPE: "anthropic"
    exports.COPILOT_PROVIDER_BASE_URL: "http://host:1"
    exports.COPILOT_PROVIDER_API_KEY: "k"
    exports.COPILOT_PROVIDER_MAX_PROMPT_TOKENS: "99072"
kimi {"others": ["small"]}
    paths: ["/home/u/.kimi-code/config.toml"]
    start: "kimi -m turnwire/acme/coder"
    0.providers.turnwire.type: "anthropic"
    absent 0: {"default_model": "turnwire/acme/coder"}
hermes {"others": ["small"]}
    paths: ["/home/u/.hermes/profiles/turnwire/config.yaml"]
    start: "hermes -p turnwire"
    0.providers.turnwire.base_url: "http://host:1/v1"
    0.providers.turnwire.api_mode: "chat_completions"
    0.providers.turnwire.models: {"acme/coder": {"context_length": 131072}, "small": {"context_length": 32768}}
kilo
    paths: ["/home/u/.config/kilo/kilo.json"]
openclaw {"others": ["small"], "default": true}
    paths: ["/home/u/.openclaw/openclaw.json"]
    0.models.providers.turnwire.api: "anthropic-messages"
    0.models.providers.turnwire.baseUrl: "http://host:1"
    0.models.providers.turnwire.models.0.id: "acme/coder"
    0.agents.defaults.model.primary: "turnwire/acme/coder"
"""
"""A client with options of its target, and values of its plan, by their places."""


def rows() -> Iterator[tuple[str, dict[str, Any], dict[str, str]]]:
    """The client, the options, and the values in JSON."""
    for row in re.split(r"\n(?=\w)", PLANS.rstrip())[1:]:
        head, *lines = row.splitlines()
        name, _, options = head.partition(" ")
        values = dict(line.strip().split(": ", 1) for line in lines)
        yield name, json.loads(options or "{}"), values


def test_client_gets_its_settings(cases: Cases) -> None:
    assert {name for name, _, _ in rows()} == {*AGENTS}
    for name, options, wanted in rows():
        options["others"] = [MODELS[model] for model in options.get("others", [])]
        with cases.case(client=name, options=options):
            found = facts(load_client(name).plan(target(**options)))
            shown = {
                place: json.dumps(found[place]) if place in found else "(absent)"
                for place in wanted
            }
            assert shown == wanted


def test_library_gets_a_program() -> None:
    for name in ("langchain", "litellm", "pydantic-ai"):
        code = load_client(name).plan(target(ServedModel('a"b'), key="k\\")).code
        compile(code, name, "exec")
        assert f'"{URL}/v1"' in code


def test_unsupported_api_is_refused() -> None:
    with pytest.raises(BadRequest, match="Hermes Agent uses messages or chat, not responses"):
        load_client("hermes").plan(target(api="responses"))


def test_start_command_has_the_model_as_one_word() -> None:
    split = []
    for name in ("cline", "kilo", "kimi", "openclaw", "opencode", "pi", "qwen"):
        for model in ("My Model", "it's", "a;b && c", "$HOME/`x`", "é*"):
            start = load_client(name).plan(target(ServedModel(model, 131_072, 131_072))).start
            if not {model, f"turnwire/{model}"} & {*shlex.split(start)}:
                split.append((name, start))
    assert split == []
