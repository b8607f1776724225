"""compose.yaml against the code: every setting exists, every stage is there, hardened and with a health check.

That it runs is shown by deploy/prove.sh, where there is a Docker daemon.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.cli.make_secrets import make_secrets
from services.runtime.config import STAGES, BucketsConfig, StageConfig
from services.runtime.config.loader import Sources

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, Any] = msgspec.yaml.decode((ROOT / "compose.yaml").read_bytes())["services"]
OF_STAGE = {**{stage: stage for stage in STAGES}, "worker-gpu": "worker", "worker-vllm": "worker"}
DEFAULT = re.compile(r"\$\{[A-Z_]+:-((?:[^{}]|\$\{[^{}]*\})*)\}")


def resolved(text: str) -> str:
    """Replaces `${NAME:-default}` by the default, as Compose does."""
    while DEFAULT.search(text):
        text = DEFAULT.sub(r"\1", text)
    return text


@pytest.mark.parametrize("service", OF_STAGE)
def test_the_settings_of_a_service_are_settings_of_its_stage(service: str) -> None:
    stage = OF_STAGE[service]
    env = {name: resolved(str(value)) for name, value in SERVICES[service]["environment"].items()}
    loaded = Sources(env=env).load(STAGES[stage])
    config = loaded.config
    assert config.bus.nats_url == "nats://nats:4222"
    assert config.bus.nats_user == stage
    assert loaded.origins["nats_password_file"] == "TURNWIRE_NATS_PASSWORD_FILE"
    assert config.bus.heartbeat_key_file is not None
    if isinstance(config, StageConfig):
        assert config.served_model_name == "turnwire-demo"
        assert config.metrics_port is not None
    assert SERVICES[service]["command"][:2] == ["serve", stage]


def test_the_buckets_are_made_before_any_service_starts() -> None:
    setup = SERVICES["setup"]
    config = Sources(env=setup["environment"]).load(BucketsConfig).config
    assert (config.bus.nats_url, config.bus.nats_user) == ("nats://nats:4222", "setup")
    assert (setup["command"], setup["restart"]) == (["buckets"], "no")
    assert setup["env_file"] == SERVICES["frontend"]["env_file"], "its settings are those of the services"
    assert set(setup["depends_on"]) == {"nats", "secrets"}
    for service in OF_STAGE:
        assert SERVICES[service]["depends_on"] == {"setup": {"condition": "service_completed_successfully"}}


@pytest.mark.parametrize("service", [*OF_STAGE, "setup", "tap", "inspect"])
def test_a_service_sees_its_own_secrets_only(service: str, tmp_path: Path) -> None:
    stage = "tap" if service == "inspect" else OF_STAGE.get(service, service)
    make_secrets(tmp_path)
    (mount,) = [v for v in SERVICES[service]["volumes"] if isinstance(v, dict)]
    assert (mount["source"], mount["volume"], mount["read_only"]) == ("secrets", {"subpath": stage}, True)
    for name, value in SERVICES[service]["environment"].items():
        if name.endswith("_FILE"):
            assert (tmp_path / stage / Path(value).relative_to(mount["target"])).is_file()


@pytest.mark.parametrize("service", [*OF_STAGE, "nats"])
def test_containers_have_health_checks_and_no_privileges(service: str) -> None:
    container = SERVICES[service]
    assert container["healthcheck"]["test"][0] == "CMD"
    assert container["cap_drop"] == ["ALL"]
    assert container["security_opt"] == ["no-new-privileges:true"]
    assert container["read_only"] is (service not in ("worker-gpu", "worker-vllm"))
    assert "network_mode" not in container


@pytest.mark.parametrize("dockerfile", sorted(path.name for path in (ROOT / "deploy").glob("*Dockerfile")))
def test_images_do_not_run_as_root(dockerfile: str) -> None:
    lines = (ROOT / "deploy" / dockerfile).read_text().splitlines()
    assert "USER 10001:10001" in lines


def test_one_worker_by_default_and_the_other_by_profile() -> None:
    assert "COMPOSE_PROFILES=cpu" in (ROOT / ".env").read_text().splitlines()
    assert SERVICES["worker"]["profiles"] == ["cpu"]
    gpu = SERVICES["worker-gpu"]
    assert gpu["profiles"] == ["gpu"]
    assert gpu["ipc"] == "host"
    assert gpu["cap_add"] == ["SYS_PTRACE"]
    assert gpu["ulimits"] == {"memlock": -1, "stack": 67108864}
    assert SERVICES["worker-vllm"]["profiles"] == ["vllm"]
    assert SERVICES["worker-vllm"]["ipc"] == "host"
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])


def make_env(tmp_path: Path, gpu_mib: int | None, *model: str) -> dict[str, str]:
    """What `deploy/make-env.sh` writes where `nvidia-smi` reports such a GPU, or fails."""
    programs = tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    answer = "exit 9" if gpu_mib is None else f"printf '{gpu_mib}\\n{gpu_mib * 2}\\n'"
    for name, script in {"nvidia-smi": answer, "docker": "echo '{\"nvidia\":{}}'"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    subprocess.run(
        ["sh", str(ROOT / "deploy" / "make-env.sh"), *model],
        cwd=tmp_path,
        env={"PATH": f"{programs}:{os.environ['PATH']}"},
        check=True,
        timeout=60,
    )
    lines = [line for line in (tmp_path / ".env").read_text().splitlines() if "=" in line and line[0] != "#"]
    assert len({line.partition("=")[0] for line in lines}) == len(lines)
    return dict(line.split("=", 1) for line in lines)


def test_make_env_chooses_one_worker_by_the_machine(tmp_path: Path) -> None:
    shutil.copy(ROOT / ".env", tmp_path)
    (tmp_path / ".env").open("a").write("HF_TOKEN=kept\n")
    assert make_env(tmp_path, 81_559) == {
        "HF_TOKEN": "kept",
        "COMPOSE_PROFILES": "gpu",
        "TURNWIRE_MODEL": "Qwen/Qwen3-8B",
    }
    assert make_env(tmp_path, 8_192)["TURNWIRE_MODEL"] == "Qwen/Qwen3-0.6B"
    assert make_env(tmp_path, 81_559, "org/model")["TURNWIRE_MODEL"] == "org/model"
    assert make_env(tmp_path, None) == {"HF_TOKEN": "kept", "COMPOSE_PROFILES": "cpu"}


def test_nothing_but_the_frontend_is_reachable_from_outside() -> None:
    """The inspector is started by hand, listens on this machine by default, and requires a key."""
    assert [name for name, container in SERVICES.items() if "ports" in container] == ["frontend", "inspect"]
    inspector = SERVICES["inspect"]
    assert inspector["profiles"] == ["tools"]
    assert [resolved(port) for port in inspector["ports"]] == ["127.0.0.1:8090:8090"]
    assert inspector["entrypoint"] == ["turnwire", "inspect", "--host", "0.0.0.0"]
    assert resolved(SERVICES["frontend"]["ports"][0]) == "127.0.0.1:8000:8000"
