"""The addresses of inference servers in settings, and what the servers there answer."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from services.cli.check.servers import examine_servers
from services.runtime.config.loader import ConfigError, LoadedConfig
from services.runtime.config.stages import WorkerConfig
from services.worker.engines.registry import GROUP
from tests.cli.up_plans import problems_of_up, states
from tests.kit.installing import install
from tests.worker.fake_vllm_server import fake_vllm_server


def test_engine_of_another_package_decodes_on_an_inference_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
from services.worker.engines.remote.engine import RemoteEngine
from services.worker.engines.remote.vllm.dialect import VllmDialect

class Served(RemoteEngine):
    @staticmethod
    def make_dialect(config):
        return VllmDialect()
"""
    install(tmp_path, "served_engine", source, GROUP, "served = served_engine:Served")
    monkeypatch.syspath_prepend(tmp_path)
    flags = ["--engine=served", "--model=acme/m"]
    assert problems_of_up([*flags, "--engine-url=http://a:1"]) == []
    (problem,) = problems_of_up(flags)
    assert states(problem, "--engine", "--engine-url")


def test_address_of_an_inference_server_has_no_password() -> None:
    """Errors and the process list show it."""
    url = "http://a:1,http://user:hush@b:2"
    (problem,) = problems_of_up(["--engine=vllm-server", f"--engine-url={url}", "--model=acme/m"])
    assert states(problem, "--engine-url", "--engine-api-key-file")
    assert "hush" not in problem


@pytest.mark.parametrize(
    ("urls", "reason"),
    [
        ("http://a:1/?key=k", "no query"),
        ("http://a:1/#top", "no fragment"),
        ("http://a:1,b:2", "http://HOST:PORT"),
        ("https://a,https://b,https://A:443/", "https://A:443/ is there twice"),
    ],
)
def test_address_of_an_inference_server_is_checked(urls: str, reason: str) -> None:
    (problem,) = problems_of_up(["--engine=vllm-server", f"--engine-url={urls}", "--model=acme/m"])
    assert states(problem, "--engine-url", reason)


def test_engine_over_a_server_needs_its_address() -> None:
    (problem,) = problems_of_up(["--engine=vllm-server", "--model=acme/m"])
    assert states(problem, "--engine", "--engine-url")


@pytest.mark.parametrize(
    ("options", "path", "problem"),
    [
        ({"scale_out": False}, "", "--enable-scale-out"),
        ({"key": "k"}, "", "401"),
        ({}, "/v1/", "leave out the /v1"),
        ({}, "", None),
    ],
)
async def test_check_asks_the_inference_server(
    options: dict[str, Any], path: str, problem: str | None, demo_dir: Path
) -> None:
    async with fake_vllm_server(**options) as server:
        config = WorkerConfig(
            model=str(demo_dir), engine="vllm-server", engine_url=server.url + path
        )
        loaded = LoadedConfig(config, {"engine_url": "--engine-url"})
        if problem is None:
            assert await asyncio.to_thread(examine_servers, loaded) == 4096
            return
        with pytest.raises(ConfigError) as caught:
            await asyncio.to_thread(examine_servers, loaded)
    assert states(caught.value.problems[0], "--engine-url", problem)
