"""Follows README.md and the pages of docs/ as a new user does: command by command, in a fresh copy
of the repository."""

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.commands import Command, read_commands
from tests.docs.reader import LIMIT_S, ROOT, SERVES, Reader, await_condition, copy_repository
from tests.kit.every import for_each
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
"""Images that the commands for containers need, and the variables that name others."""
LANGUAGES = {"sh", "console", "text", "ini", "json", "python", "toml", "yaml"}
"""The languages of a page's blocks: commands are `sh` or `console`, so that they are run."""
PROGRAMS = re.compile(
    r"(?m)^\s*(\$ |turnwire |docker |kubectl |make |pip |\.venv/|python |curl |nats-server|git |kill )"
)


ALL = [command for page in PAGES for command in read_commands(ROOT / page, page)]


def test_pages_have_commands() -> None:
    assert len([command for command in ALL if not command.skipped]) > 20
    pages = {command.place.partition(":")[0] for command in ALL}
    assert pages >= {"README.md", "docs/clients.md", "docs/operations.md"}
    assert all(command.skipped != "" or "org/model" not in command.text for command in ALL)


@for_each(PAGES)
def test_every_command_is_in_a_block_that_is_run(page: str) -> None:
    fences = re.findall(r"^ *```(.*)\n([\s\S]*?)^ *```$", (ROOT / page).read_text(), re.MULTILINE)
    for language, body in fences:
        assert language in LANGUAGES, f"a block of the language {language!r}: {body}"
        if language in ("text", "ini"):
            assert not PROGRAMS.search(body), f"commands in a block that is not run: {body}"


def test_commands_are_read_from_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- not run `b`: no b -->\n```sh\na '#1' \\\n  x   # why\n# only a comment\nb 2\n```\n\n"
        "<!-- file f.toml -->\n```toml\nx = 1\n```\n```console\n$ c\nout\n…\n$ d\n```\n```\nno command\n```\n"
        "<!-- in containers; not run: heavy -->\n```sh\ne\n```\n"
    )
    a, b, f, c, d, e = read_commands(page, "p")
    assert (a.text, a.skipped, a.place) == ("a '#1' x", "", "p:3")
    assert (b.text, b.skipped) == ("b 2", "no b")
    assert (f.file, f.text) == ("f.toml", "x = 1\n")
    assert (c.text, c.output, c.transcript, d.text) == ("c", ["out"], True, "d")
    assert (e.containers, e.skipped) == (True, "heavy")
    page.write_text("<!-- note: x -->\n```sh\na\n```\n")
    with pytest.raises(ValueError, match="what does"):
        list(read_commands(page, "p"))


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
        if command.skipped or command.containers or (reader.server and serves):
            continue
        reader.type(command)
        typed += 1
        if serves:
            check_banner(reader)
    assert typed > 20
    assert reader.server is not None
    reader.server.interrupt()


def check_banner(reader: Reader) -> None:
    """The lines that `make up` prints can be pasted into another shell, where no environment is
    active."""
    assert reader.server is not None
    lines = reader.server.output().splitlines()
    exports = [line.strip() for line in lines if line.startswith("  export ")]
    assert len(exports) == 9
    reader.type(Command("the banner", "; ".join(exports)))
    called = [line.rpartition(":  ")[2] for line in lines if "/turnwire " in line and ":  " in line]
    assert [line.rpartition("/")[2].split()[1] for line in called] == ["connect", "tap"]
    assert "ANTHROPIC" not in reader.type(Command("the banner", called[0]))
    tap = reader.start(Command("the banner", called[1]), until_interrupted=True)
    try:
        tap.await_output("listening on")
        tap.interrupt()
    finally:
        tap.kill()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_command_for_containers_works_as_written(reader: Reader) -> None:
    """With the images that `TURNWIRE_COMPOSE_…` name, where a registry or this machine has them."""
    if shutil.which("docker") is None or not runs("docker", "info"):
        pytest.skip("no Docker daemon runs here")
    if not runs("docker", "compose", "version"):
        pytest.skip("docker has no compose")
    for name, image in IMAGES.items():
        wanted = os.environ.get(name, image)
        there = runs("docker", "image", "inspect", wanted) or runs("docker", "pull", wanted)
        if not there:
            pytest.skip(f"there is no image {wanted} here, and no registry ({name} names another)")
    port = free_port()
    names = [name for name in os.environ if name.startswith(("TURNWIRE_COMPOSE_", "DOCKER_"))]
    reader.environment |= {
        **{name: os.environ[name] for name in names},
        "HOME": str(Path.home()),
        "COMPOSE_PROJECT_NAME": f"turnwire-docs-{port}",
        "TURNWIRE_COMPOSE_LISTEN": f"127.0.0.1:{port}",
    }
    down = Command("the end", "docker compose -f compose.demo.yaml down --volumes --timeout 10")
    chosen = [command for command in ALL if command.containers and not command.skipped]
    assert len(chosen) >= 2
    try:
        for command in chosen:
            if re.search(r"docker compose .*\bup\b", command.text):
                bring_up(reader, command, port)
            else:
                reader.type(command)
    finally:
        reader.type(down)


def bring_up(reader: Reader, command: Command, port: int) -> None:
    running = reader.start(command, until_interrupted=True)
    process = running.process
    try:
        await_condition(lambda: ready(port) or process.poll() is not None, str(running))
        assert process.poll() is None, f"it ended: {running}"
        # Compose passes it on, and ends with a status of its own.
        process.send_signal(signal.SIGINT)
        process.wait(LIMIT_S)
    finally:
        running.kill()


def runs(*command: str) -> bool:
    return not subprocess.run(command, capture_output=True, check=False).returncode


def ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            return bool(json.loads(answer.read())["ready"])
    except (OSError, ValueError):
        return False
