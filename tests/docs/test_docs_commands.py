"""Follows README.md and the pages of docs/ as a new user does: command by command, in a fresh copy
of the repository."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.commands import Command, read_commands
from tests.docs.reader import ROOT, SERVES, Reader, await_condition, copy_repository
from tests.kit.nats import free_port

PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md"))),
]
IMAGES = {
    "TURNWIRE_COMPOSE_BASE": "python:3.12-slim",
    "TURNWIRE_COMPOSE_NATS_IMAGE": "nats:2.15-alpine",
    "TURNWIRE_COMPOSE_PROXY_IMAGE": "haproxy:3.2-alpine",
}
"""Images of the demo in containers, and the variables that name others."""


ALL = [command for page in PAGES for command in read_commands(ROOT / page, page)]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of the repository")
    (tmp_path / "clone").mkdir()
    copy_repository(tmp_path / "clone")
    made = Reader(tmp_path)
    yield made
    if made.server is not None:
        made.server.kill()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_command_works_as_written(reader: Reader) -> None:
    typed = 0
    for command in ALL:
        serves = SERVES.match(command.text)
        if command.skipped or (reader.server and serves):
            continue
        reader.type(command)
        typed += 1
    assert typed > 20
    assert reader.server is not None
    reader.server.interrupt()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_demo_runs_in_containers_as_written(reader: Reader) -> None:
    """With the images that `TURNWIRE_COMPOSE_…` name, where a registry or this machine has them."""
    if shutil.which("docker") is None or not runs("docker", "compose", "version"):
        pytest.skip("docker has no compose")
    for name, image in IMAGES.items():
        wanted = os.environ.get(name, image)
        if not runs("docker", "image", "inspect", wanted) and not runs("docker", "pull", wanted):
            pytest.skip(f"there is no image {wanted} here, and no registry ({name} names another)")
    port = free_port()
    names = [name for name in os.environ if name.startswith(("TURNWIRE_COMPOSE_", "DOCKER_"))]
    reader.environment |= {
        **{name: os.environ[name] for name in names},
        "HOME": str(Path.home()),
        "COMPOSE_PROJECT_NAME": f"turnwire-docs-{port}",
        "TURNWIRE_COMPOSE_LISTEN": f"127.0.0.1:{port}",
    }
    demo = "docker compose -f compose.demo.yaml"
    up = next(command for command in ALL if command.text.startswith(f"{demo} up"))
    running = reader.start(up, until_interrupted=True)
    health = f"http://127.0.0.1:{port}/health"
    try:
        await_condition(
            lambda: runs("curl", "-sf", health) or running.process.poll() is not None, str(running)
        )
        assert running.process.poll() is None, f"it ended: {running}"
    finally:
        running.kill()
        reader.type(Command("the end", f"{demo} down --volumes --timeout 10"))


def runs(*command: str) -> bool:
    return not subprocess.run(command, capture_output=True, check=False).returncode
