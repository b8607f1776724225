"""compose.yaml against the code: every setting exists, every stage is there, hardened and with a
health check. That it runs is shown by deploy/prove.sh, where there is a Docker daemon."""

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.cli.commands.make_secrets import make_secrets
from services.runtime.config.loader import Sources
from services.runtime.config.service import StageConfig
from services.runtime.config.stages import WorkerConfig
from services.runtime.config.stores import BucketsConfig
from services.runtime.config.tables import STAGES
from tests.kit.every import for_each
from tests.kit.waiting import LIMIT_S

ROOT = Path(__file__).parents[2]


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.yaml.decode((ROOT / name).read_bytes())
    return found


COMPOSE = read("compose.yaml")
SERVICES: dict[str, Any] = COMPOSE["services"]
MONITORING = read("deploy/compose.monitoring.yaml")["services"]
DEFAULT = re.compile(r"\$\{[A-Z_]+:-((?:[^{}]|\$\{[^{}]*\})*)\}")
IF_SET = re.compile(r"\$\{[A-Z_]+:\+[^{}]*\}")
CONTAINERS: dict[str, Any] = {**SERVICES, **MONITORING}
COMPLETED = {"condition": "service_completed_successfully"}


def resolved(text: str) -> str:
    """Replaces `${NAME:-default}` by the default and `${NAME:+value}` by nothing, as Compose
    does."""
    text = IF_SET.sub("", text)
    while DEFAULT.search(text):
        text = DEFAULT.sub(r"\1", text)
    return text


def environment(service: str) -> dict[str, str]:
    """The variables of a service, by default."""
    values = SERVICES[service].get("environment", {})
    return {name: resolved(str(value)) for name, value in values.items()}


@for_each(sorted(STAGES))
def test_the_settings_of_a_service_are_settings_of_its_stage(stage: str) -> None:
    loaded = Sources(env=environment(stage)).load(STAGES[stage])
    config = loaded.config
    assert config.bus.nats_url == "nats://nats:4222"
    assert config.bus.nats_user == stage
    assert loaded.origins["nats_password_file"] == "TURNWIRE_NATS_PASSWORD_FILE"
    assert config.bus.heartbeat_key_file is not None
    if isinstance(config, StageConfig):
        assert config.served_model_name == "Qwen/Qwen3-8B"
        assert config.metrics_port is not None
    assert SERVICES[stage]["command"][:2] == ["serve", stage]
    assert SERVICES[stage]["depends_on"] == {"setup": COMPLETED}


def test_the_model_is_checked_and_buckets_are_created_before_any_service_starts() -> None:
    setup = SERVICES["setup"]
    config = Sources(env=setup["environment"]).load(BucketsConfig).config
    assert (config.bus.nats_url, config.bus.nats_user) == ("nats://nats:4222", "setup")
    assert (setup["command"], setup["restart"]) == (["buckets"], "no")
    assert setup["env_file"] == SERVICES["frontend"]["env_file"], "the services' settings"
    assert set(setup["depends_on"]) == {"nats", "secrets"}
    check = SERVICES["check"]
    assert (check["command"], check["restart"], check["depends_on"]) == (["check"], "no", {})
    assert SERVICES["nats"]["depends_on"]["check"] == COMPLETED
    Sources(env=environment("check")).load_all(STAGES)
    for stage in ("preprocessor", "parser", "worker"):
        assert environment("check").items() <= environment(stage).items()


def test_worker_of_a_server_has_its_settings_and_no_gpu() -> None:
    text = (ROOT / "deploy" / "compose.server.yaml").read_text().replace("!reset ", "")
    services = msgspec.yaml.decode(text.encode())["services"]
    worker = services["worker"]
    assert worker["environment"] == services["check"]["environment"]
    variables = {**environment("worker"), **worker["environment"]}
    variables["TURNWIRE_ENGINE_URL"] = "http://host.docker.internal:8000"
    variables = {name: resolved(value) for name, value in variables.items()}
    config = Sources(env=variables).load(WorkerConfig).config
    assert (config.engine, config.engine_urls) == (
        "vllm-server",
        ["http://host.docker.internal:8000"],
    )
    assert (worker["deploy"], worker["ipc"], worker["cap_add"]) == (None, None, [])


@for_each([*STAGES, "setup", "tap", "inspect"])
def test_a_service_sees_its_own_secrets_only(service: str, tmp_path: Path) -> None:
    user = "tap" if service == "inspect" else service
    make_secrets(tmp_path)
    (mount,) = [v for v in SERVICES[service]["volumes"] if isinstance(v, dict)]
    assert (mount["source"], mount["read_only"]) == ("secrets", True)
    assert mount["volume"] == {"subpath": user}
    for name, value in SERVICES[service]["environment"].items():
        if name.endswith("_FILE") and resolved(value):
            assert (tmp_path / user / Path(value).relative_to(mount["target"])).is_file()


def test_tokens_and_keys_are_files_that_only_their_services_have() -> None:
    assert COMPOSE["secrets"]["hf_token"]["file"] == "${TURNWIRE_COMPOSE_HF_TOKEN_FILE:-/dev/null}"
    have = {name: container.get("secrets", []) for name, container in SERVICES.items()}
    assert {name for name, secrets in have.items() if "hf_token" in secrets} == {
        *("check", "preprocessor", "parser", "worker")
    }
    assert {name for name, secrets in have.items() if "api_keys" in secrets} == {"frontend"}
    assert "HF_TOKEN:" not in (ROOT / "compose.yaml").read_text()


def test_containers_have_limits_health_checks_and_no_privileges() -> None:
    for service in (*STAGES, "nats"):
        assert SERVICES[service]["healthcheck"]["test"][0] == "CMD", service
        assert "network_mode" not in SERVICES[service], service
    for name, container in CONTAINERS.items():
        assert (name, container["cap_drop"]) == (name, ["ALL"])
        assert (name, container["security_opt"]) == (name, ["no-new-privileges:true"])
        # Engines write files beside their own, and use the memory that there is.
        assert container["read_only"] is (name != "worker"), name
        assert re.fullmatch(r"0|\d+[mg]", resolved(container["mem_limit"])), name
    for dockerfile in (ROOT / "deploy").glob("*Dockerfile"):
        assert "USER 10001:10001" in dockerfile.read_text().splitlines(), dockerfile


def test_images_contain_package_data() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line[1:] for line in lines if line.startswith("!")}
    files = [
        file.relative_to(ROOT)
        for package, patterns in project["tool"]["setuptools"]["package-data"].items()
        for pattern in patterns
        for file in (ROOT / package.replace(".", "/")).glob(pattern)
        if file.name != "py.typed"
    ]
    assert len(files) > 4
    for file in files:
        assert str(file) in sent or str(file.parent) in sent, file


def make_env(tmp_path: Path, nvidia_smi: str, *arguments: str) -> dict[str, str]:
    """What `deploy/make-env.sh` writes where `nvidia-smi` is this script."""
    programs = tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    for name, script in {"nvidia-smi": nvidia_smi, "docker": "echo '{\"nvidia\":{}}'"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    command = ["sh", str(ROOT / "deploy" / "make-env.sh"), *arguments]
    path = {"PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run(command, cwd=tmp_path, env=path, check=True, timeout=LIMIT_S)
    lines = (tmp_path / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")


def test_make_env_chooses_the_engine_by_the_machine(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TURNWIRE_SLOTS=8\nCOMPOSE_PROFILES=gpu\n")
    large = {"TURNWIRE_SLOTS": "8", "TURNWIRE_MODEL": "Qwen/Qwen3-8B"}
    assert make_env(tmp_path, "echo 81559") == large
    assert make_env(tmp_path, "echo 8192")["TURNWIRE_MODEL"] == "Qwen/Qwen3-0.6B"
    vllm = make_env(tmp_path, "echo 81559", "", "vllm")
    assert vllm["COMPOSE_FILE"] == "compose.yaml:deploy/compose.vllm.yaml"
    server = make_env(tmp_path, "exit 1", "org/model", "vllm-server")
    assert server["COMPOSE_FILE"] == "compose.yaml:deploy/compose.server.yaml"
    assert (server["TURNWIRE_MODEL"], server["TURNWIRE_ENGINE"]) == ("org/model", "vllm-server")
    with pytest.raises(subprocess.CalledProcessError):
        make_env(tmp_path, "exit 1", "org/model", "other-server")
    demo = {"TURNWIRE_SLOTS": "8", "COMPOSE_FILE": "compose.demo.yaml"}
    assert make_env(tmp_path, "exit 9") == demo


def test_only_the_proxy_is_reachable_from_outside() -> None:
    """The inspector is started by hand, listens on this machine by default, and requires a key."""
    assert {name for name, one in SERVICES.items() if "ports" in one} == {"proxy", "inspect"}
    inspector = SERVICES["inspect"]
    assert inspector["profiles"] == ["tools"]
    assert [resolved(port) for port in inspector["ports"]] == ["127.0.0.1:8090:8090"]
    assert inspector["entrypoint"] == ["turnwire", "inspect", "--host", "0.0.0.0"]
    assert resolved(SERVICES["proxy"]["ports"][0]) == "127.0.0.1:8000:8000"
    assert SERVICES["proxy"]["networks"] == ["web"], "it reaches frontends only"
    in_web = {name for name, one in SERVICES.items() if "web" in one.get("networks", [])}
    assert in_web == {"proxy", "frontend"}
