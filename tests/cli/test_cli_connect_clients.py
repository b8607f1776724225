"""The settings of each client for a running server: its limits, the API, the model catalogue."""

import shlex
from typing import Any

import pytest

from schemas.control import ModelCard
from services.cli.connect.client import AgentClient, BadRequest, Target, client_names, load_client
from services.cli.connect.clients import (
    aider,
    claude,
    cline,
    codex,
    copilot,
    hermes,
    kilo,
    kimi,
    openclaw,
    opencode,
    pi,
    qwen,
)
from services.cli.connect.server import ServedModel
from services.frontend.apis.models.documents import listing, names

CARDS = [
    ModelCard("acme/coder", aliases=["gpt-5.5"], max_model_len=131_072, reasoning=True, created=1),
    ModelCard("small", max_model_len=32_768, max_output_tokens=4096),
]
LARGE = ServedModel("acme/coder", 131_072, 131_072, capabilities={"thinking": {"supported": True}})
SMALL = ServedModel("small", 32_768, 4096)


def target(model: ServedModel = LARGE, **more: Any) -> Target:
    return Target("http://host:1", model, **{"env": {"HOME": "/home/u"}, **more})


@pytest.mark.parametrize(
    ("window", "longest", "expected"),
    [
        (131_072, 131_072, {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "131072"}),
        (
            131_072,
            8192,
            {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "131072", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "8192"},
        ),
        (
            32_768,
            32_768,
            {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "32768", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "8192"},
        ),
        (
            65_536,
            4096,
            {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "65536", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "4096"},
        ),
        (0, 0, {}),
    ],
)
def test_limits_follow_the_window(window: int, longest: int, expected: dict[str, str]) -> None:
    assert claude.limits(window, longest) == expected


def test_claude_code_gets_variables() -> None:
    plan = claude.CLIENT.plan(target())
    assert plan.exports["ANTHROPIC_BASE_URL"] == "http://host:1"
    assert {
        plan.exports[f"ANTHROPIC_DEFAULT_{tier}_MODEL"] for tier in ("OPUS", "SONNET", "HAIKU")
    } == {"acme/coder"}
    assert plan.exports["ANTHROPIC_AUTH_TOKEN"] == "any"
    [settings] = plan.files
    assert (settings.path, settings.values) == (
        "/home/u/.claude/settings.json",
        {"env": plan.exports},
    )
    elsewhere = claude.CLIENT.plan(
        target(key="k", env={"HOME": "/home/u", "CLAUDE_CONFIG_DIR": "/cc"})
    )
    assert (elsewhere.files[0].path, elsewhere.exports["ANTHROPIC_AUTH_TOKEN"]) == (
        "/cc/settings.json",
        "k",
    )
    assert claude.CLIENT.plan(target(ServedModel("claude-opus-5-5", 1000))).notes


def test_codex_gets_the_catalogue_by_url_or_file() -> None:
    [settings] = codex.CLIENT.plan(target(key="k")).files
    assert settings.path == "/home/u/.codex/turnwire.config.toml"
    provider = settings.values["model_providers"]["turnwire"]
    assert provider["base_url"] == "http://host:1/v1"
    assert provider["model_catalog_url"] == "http://host:1/codex/models.json"
    assert (provider["experimental_bearer_token"], provider["supports_websockets"]) == ("k", False)
    assert (settings.values["model"], settings.values["web_search"]) == ("acme/coder", "disabled")
    models, settings = codex.CLIENT.plan(
        target(catalogue_file=True, catalogue=[{"slug": "x"}], websockets=True)
    ).files
    assert (models.path, models.values) == (
        "/home/u/.codex/turnwire-models.json",
        {"models": [{"slug": "x"}]},
    )
    assert settings.values["model_catalog_json"] == models.path
    provider = settings.values["model_providers"]["turnwire"]
    assert provider["supports_websockets"] is True
    assert "model_catalog_url" not in provider


def test_codex_searches_if_the_server_does() -> None:
    for hosted, setting, noted in (
        ([], "disabled", True),
        (["web_search", "web_fetch"], "live", False),
    ):
        [entry, *_] = listing(names(CARDS), {}, hosted=hosted)["data"]
        plan = codex.CLIENT.plan(
            target(ServedModel("acme/coder", 131_072, capabilities=entry["capabilities"]))
        )
        assert plan.files[0].values["web_search"] == setting
        assert (codex.NO_SEARCH in plan.notes) is noted


def test_codex_has_a_key_even_if_the_server_requires_none() -> None:
    provider = codex.CLIENT.plan(target()).files[0].values["model_providers"]["turnwire"]
    assert provider["experimental_bearer_token"]


def test_codex_follows_default_and_folder() -> None:
    plan = codex.CLIENT.plan(target(default=True, folder="/x"))
    assert (plan.files[0].path, plan.start) == ("/x/config.toml", "codex")
    plan = codex.CLIENT.plan(target(env={"HOME": "/h", "CODEX_HOME": "/c"}))
    assert (plan.files[0].path, plan.start) == (
        "/c/turnwire.config.toml",
        "codex --profile turnwire",
    )


@pytest.mark.parametrize(
    ("api", "package"),
    [
        (None, "@ai-sdk/anthropic"),
        ("chat", "@ai-sdk/openai-compatible"),
        ("responses", "@ai-sdk/openai"),
    ],
)
def test_opencode_gets_a_provider(api: Any, package: str) -> None:
    [settings] = opencode.CLIENT.plan(target(api=api, others=[SMALL])).files
    provider = settings.values["provider"]["turnwire"]
    assert (provider["npm"], provider["options"]["baseURL"]) == (package, "http://host:1/v1")
    assert provider["models"]["acme/coder"]["limit"] == {"context": 131_072, "output": 32_000}
    assert provider["models"]["small"]["limit"] == {"context": 32_768, "output": 4096}
    assert settings.if_absent["model"] == "turnwire/acme/coder"
    assert "model" not in settings.values


def test_opencode_sends_images_to_models_that_see_them() -> None:
    seeing = ServedModel("seeing", 32_768, 4096, capabilities={"image_input": {"supported": True}})
    [settings] = opencode.CLIENT.plan(target(others=[seeing])).files
    models = settings.values["provider"]["turnwire"]["models"]
    assert models["seeing"]["modalities"]["input"] == ["text", "image"]
    assert "modalities" not in models["acme/coder"]


def test_qwen_code_gets_a_provider() -> None:
    """A provider of its own: the user's own models of other providers stay."""
    [settings] = qwen.CLIENT.plan(target(key="k", others=[SMALL])).files
    assert settings.path == "/home/u/.qwen/settings.json"
    first, second = settings.values["modelProviders"]["turnwire"]
    assert (first["id"], first["baseUrl"], second["id"]) == (
        "acme/coder",
        "http://host:1/v1",
        "small",
    )
    assert first["generationConfig"] == {"contextWindowSize": 131_072}
    assert settings.values["env"] == {first["envKey"]: "k"}
    assert settings.values["providerProtocol"] == {"turnwire": "openai"}
    assert "model" not in settings.values
    plan = qwen.CLIENT.plan(target(default=True))
    assert (plan.files[0].values["model"], plan.start) == ({"name": "acme/coder"}, "qwen")


@pytest.mark.parametrize(
    ("api", "spoken", "url"),
    [
        (None, "anthropic-messages", "http://host:1"),
        ("chat", "openai-completions", "http://host:1/v1"),
    ],
)
def test_pi_gets_a_provider(api: Any, spoken: str, url: str) -> None:
    plan = pi.CLIENT.plan(target(api=api, others=[SMALL]))
    [settings] = plan.files
    provider = settings.values["providers"]["turnwire"]
    assert (settings.path, provider["api"], provider["baseUrl"]) == (
        "/home/u/.pi/agent/models.json",
        spoken,
        url,
    )
    assert [(m["id"], m["contextWindow"], m["maxTokens"]) for m in provider["models"]] == [
        ("acme/coder", 131_072, 32_000),
        ("small", 32_768, 4096),
    ]
    assert plan.start == "pi --provider turnwire --model acme/coder"
    _, default = pi.CLIENT.plan(target(default=True)).files
    assert default.values == {"defaultProvider": "turnwire", "defaultModel": "acme/coder"}


def test_cline_gets_a_provider() -> None:
    [settings] = cline.CLIENT.plan(target()).files
    provider = settings.values["providers"]["openai-compatible"]["settings"]
    assert settings.path == "/home/u/.cline/data/settings/providers.json"
    assert (provider["baseUrl"], provider["model"], provider["contextWindow"]) == (
        "http://host:1/v1",
        "acme/coder",
        131_072,
    )
    assert settings.if_absent["lastUsedProvider"] == "openai-compatible"
    with pytest.raises(BadRequest, match="Cline uses chat, not messages"):
        cline.CLIENT.plan(target(api="messages"))


def test_aider_has_files_beside_the_users_own() -> None:
    plan = aider.CLIENT.plan(target())
    settings, limits = plan.files
    assert settings.path == "/home/u/.aider.turnwire.conf.yml"
    assert settings.values["openai-api-base"] == "http://host:1/v1"
    assert settings.values["model-metadata-file"] == limits.path
    assert limits.values["openai/acme/coder"]["max_input_tokens"] == 131_072
    assert plan.start.endswith(settings.path)
    assert (
        shlex.split(aider.CLIENT.plan(target(folder="/my folder")).start)[-1]
        == "/my folder/.aider.turnwire.conf.yml"
    )


@pytest.mark.parametrize(
    ("api", "variables"),
    [
        (
            None,
            {"COPILOT_PROVIDER_TYPE": "anthropic", "COPILOT_PROVIDER_BASE_URL": "http://host:1"},
        ),
        (
            "responses",
            {"COPILOT_PROVIDER_TYPE": "openai", "COPILOT_PROVIDER_WIRE_API": "responses"},
        ),
        (
            "chat",
            {
                "COPILOT_PROVIDER_BASE_URL": "http://host:1/v1",
                "COPILOT_PROVIDER_WIRE_API": "completions",
            },
        ),
    ],
)
def test_copilot_gets_variables(api: Any, variables: dict[str, str]) -> None:
    plan = copilot.CLIENT.plan(target(api=api, key="k", websockets=True))
    assert plan.exports.items() >= variables.items()
    assert plan.exports["COPILOT_PROVIDER_API_KEY"] == "k"
    assert ("COPILOT_PROVIDER_TRANSPORT" in plan.exports) is (api == "responses")
    assert plan.exports["COPILOT_PROVIDER_MAX_PROMPT_TOKENS"] == str(131_072 - 32_000)
    [settings] = plan.files
    assert (settings.path, settings.values) == ("/home/u/.copilot/turnwire.env", plan.exports)
    assert plan.start == "copilot"


@pytest.mark.parametrize(
    ("api", "spoken"), [(None, "anthropic"), ("responses", "openai_responses"), ("chat", "openai")]
)
def test_kimi_code_gets_a_provider(api: Any, spoken: str) -> None:
    plan = kimi.CLIENT.plan(target(api=api, others=[SMALL]))
    [settings] = plan.files
    assert (settings.path, plan.start) == (
        "/home/u/.kimi-code/config.toml",
        "kimi -m turnwire/acme/coder",
    )
    assert settings.values["providers"]["turnwire"]["type"] == spoken
    models = settings.values["models"]
    assert [(name, model["max_context_size"]) for name, model in models.items()] == [
        ("turnwire/acme/coder", 131_072),
        ("turnwire/small", 32_768),
    ]
    assert models["turnwire/acme/coder"]["capabilities"] == ["thinking", "tool_use"]
    assert settings.if_absent == {"default_model": "turnwire/acme/coder"}


def test_hermes_gets_a_profile() -> None:
    plan = hermes.CLIENT.plan(target(others=[SMALL]))
    [settings] = plan.files
    assert (settings.path, plan.start) == (
        "/home/u/.hermes/profiles/turnwire/config.yaml",
        "hermes -p turnwire",
    )
    provider = settings.values["providers"]["turnwire"]
    assert (provider["base_url"], provider["api_mode"]) == ("http://host:1/v1", "chat_completions")
    assert provider["models"] == {
        "acme/coder": {"context_length": 131_072},
        "small": {"context_length": 32_768},
    }
    plan = hermes.CLIENT.plan(
        target(api="messages", default=True, env={"HOME": "/h", "HERMES_HOME": "/hermes"})
    )
    assert (plan.files[0].path, plan.start, plan.notes) == (
        "/hermes/config.yaml",
        "hermes",
        [hermes.NEEDS_ANTHROPIC],
    )
    assert plan.files[0].values["providers"]["turnwire"]["base_url"] == "http://host:1"
    with pytest.raises(BadRequest, match="uses messages or chat, not responses"):
        hermes.CLIENT.plan(target(api="responses"))


def test_kilo_gets_the_provider_of_opencode() -> None:
    [settings] = kilo.CLIENT.plan(target()).files
    assert settings.path == "/home/u/.config/kilo/kilo.json"
    assert settings.values == opencode.CLIENT.plan(target()).files[0].values
    assert kilo.CLIENT.plan(target(env={"KILO_CONFIG": "/k.json"})).files[0].path == "/k.json"


@pytest.mark.parametrize("name", ["langchain", "litellm", "pydantic-ai"])
def test_library_gets_a_program(name: str) -> None:
    code = load_client(name).plan(target(ServedModel('a"b'), key="k\\")).code
    compile(code, name, "exec")
    assert '"http://host:1/v1"' in code
    assert '"k\\\\"' in code


@pytest.mark.parametrize(
    ("env", "path"),
    [
        ({}, "/home/u/.config/opencode/opencode.json"),
        ({"XDG_CONFIG_HOME": "/xdg"}, "/xdg/opencode/opencode.json"),
        ({"OPENCODE_CONFIG": "/o.json", "XDG_CONFIG_HOME": "/xdg"}, "/o.json"),
    ],
)
def test_opencode_settings_file_is_found(env: dict[str, str], path: str) -> None:
    [settings] = opencode.CLIENT.plan(target(env={"HOME": "/home/u", **env})).files
    assert settings.path == path


@pytest.mark.parametrize(
    ("api", "spoken", "url"),
    [
        (None, "anthropic-messages", "http://host:1"),
        ("chat", "openai-completions", "http://host:1/v1"),
        ("responses", "openai-responses", "http://host:1/v1"),
    ],
)
def test_openclaw_gets_a_provider(api: Any, spoken: str, url: str) -> None:
    [settings] = openclaw.CLIENT.plan(target(api=api, others=[SMALL], default=True)).files
    assert settings.path == "/home/u/.openclaw/openclaw.json"
    provider = settings.values["models"]["providers"]["turnwire"]
    assert (provider["api"], provider["baseUrl"]) == (spoken, url)
    assert [
        (model["id"], model["contextWindow"], model["maxTokens"]) for model in provider["models"]
    ] == [
        ("acme/coder", 131_072, 32_000),
        ("small", 32_768, 4096),
    ]
    assert settings.values["agents"]["defaults"]["model"]["primary"] == "turnwire/acme/coder"


@pytest.mark.parametrize(("client", "api"), [(claude.CLIENT, "chat"), (codex.CLIENT, "messages")])
def test_unsupported_api_is_refused(client: AgentClient, api: Any) -> None:
    with pytest.raises(BadRequest, match=api):
        client.plan(target(api=api))


def test_every_client_is_found_by_name() -> None:
    assert {name: load_client(name).title for name in client_names()} == {
        "ai-sdk": "ai-sdk",
        "aider": "aider",
        "claude": "Claude Code",
        "cline": "Cline",
        "codex": "Codex",
        "copilot": "GitHub Copilot CLI",
        "hermes": "Hermes Agent",
        "kilo": "Kilo",
        "kimi": "kimi-code",
        "langchain": "langchain",
        "litellm": "litellm",
        "openclaw": "OpenClaw",
        "opencode": "opencode",
        "pi": "pi",
        "pydantic-ai": "pydantic-ai",
        "qwen": "qwen-code",
    }


@pytest.mark.parametrize("folder", ["mine", "./a b/c", "~/mine", "../x"])
@pytest.mark.parametrize(
    "name", sorted({*client_names()} - {"ai-sdk", "langchain", "litellm", "pydantic-ai"})
)
def test_files_have_absolute_paths(name: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings name other files, and the client starts in another folder."""
    monkeypatch.setenv("HOME", "/home/u")
    for options in ({"folder": folder}, {"env": {"HOME": "/home/u", "CODEX_HOME": folder}}):
        for catalogue_file in (False, True):
            plan = load_client(name).plan(target(catalogue_file=catalogue_file, **options))
            assert all(settings.path.startswith("/") for settings in plan.files)
            assert all(
                settings.values.get("model_catalog_json", "/").startswith("/")
                for settings in plan.files
            )


@pytest.mark.parametrize("model", ["My Model", "it's", "a;b && c", "$HOME/`x`", "é*"])
@pytest.mark.parametrize("name", ["cline", "kilo", "kimi", "openclaw", "opencode", "pi", "qwen"])
def test_start_command_has_the_model_as_one_word(name: str, model: str) -> None:
    words = shlex.split(load_client(name).plan(target(ServedModel(model, 131_072, 131_072))).start)
    assert any(word in (model, f"turnwire/{model}") for word in words)
