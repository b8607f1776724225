"""Follows README.md and the pages of docs/ as a new user does: command by command, in a fresh copy
of the repository."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.commands import Command, read_commands
from tests.kit.nats import free_port

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md"))),
]
LIMIT_S = 900.0
"""`make up` and `docker compose up` install packages."""
SERVES = re.compile(r"make up\b")
"""Runs while the other commands of all pages do."""
STAYS = {
    r"make up\b|(?:\S*/)?turnwire up\b": "is served at",
    r"turnwire (tap|trajectories (?!tap))": "listening on",
    r"turnwire inspect": "http://127.0.0.1:",
    r"\S+ examples/print_traces.py": "listening on",
    r"\S+ examples/web_provider.py": "serving",
}
"""Commands that run until Ctrl-C, and what they print when they are ready."""
TARGET = re.compile(r"turnwire tap.* (?:>|--record) ?(\S+)")
"""The file that a tap writes."""
LANGUAGES = {"sh", "console", "text", "ini", "json", "python", "toml", "yaml"}
"""The languages of a page's blocks: commands are `sh` or `console`, so that they are run."""
PROGRAMS = re.compile(
    r"(?m)^\s*(\$ |turnwire |docker |kubectl |make |pip |\.venv/|python |curl |nats-server|git |kill )"
)
ADDRESS = "http://127.0.0.1:8000"
"""The address of `make up`, which takes a free port here."""
PLACEHOLDERS = {"--model DIR": "--model ~/.local/state/turnwire/demo-model"}
"""The values that a reader fills in."""


def commands(page: str) -> list[Command]:
    return list(read_commands(ROOT / page, page))


def test_pages_have_commands() -> None:
    found = [command for page in PAGES for command in commands(page)]
    assert len([command for command in found if not command.skipped]) > 20
    assert {command.place.partition(":")[0] for command in found} >= {
        "README.md",
        "docs/clients.md",
        "docs/operations.md",
    }
    assert all(command.skipped != "" or "org/model" not in command.text for command in found)


@pytest.mark.parametrize("page", PAGES)
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


def copy_repository(to: Path) -> None:
    """What `git clone` would give, with the changes that are not committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def environment(home: Path) -> dict[str, str]:
    """A new user's, with the caches and indexes of pip on this machine. Servers choose a free
    port."""
    own = Path.home()
    # `make test-all ARGS=…` exports its own variables to each make below it.
    theirs = (
        "VIRTUAL_ENV",
        "PYTHONPATH",
        "MAKEFLAGS",
        "MAKEOVERRIDES",
        "MFLAGS",
        "MAKELEVEL",
        "ARGS",
    )
    kept = {name: value for name, value in os.environ.items() if name not in theirs}
    kept = {
        name: value
        for name, value in kept.items()
        if not name.startswith(("TURNWIRE_", "XDG_", "PYTEST_"))
    }
    pip = {"PIP_CACHE_DIR": str(own / ".cache" / "pip")}
    if (own / ".config" / "pip" / "pip.conf").is_file():
        pip["PIP_CONFIG_FILE"] = str(own / ".config" / "pip" / "pip.conf")
    return {**pip, **kept, "HOME": str(home), "TURNWIRE_PORT": "0"}


class Reader:
    """One who types commands into a shell in a copy of the repository."""

    def __init__(self, directory: Path) -> None:
        self.clone = directory / "clone"
        self.directory = directory
        (directory / "home").mkdir()
        self.environment = environment(directory / "home")
        self._state = directory / "shell-state"
        self._state.touch()
        self._outputs = 0
        self.server: Running | None = None

    def type(self, command: Command) -> str:
        """Runs a command and returns its output; one that runs until Ctrl-C serves on, or sees a
        turn and is ended."""
        if command.file:
            (self.clone / command.file).write_text(command.text)
            return ""
        ready = next(
            (text for pattern, text in STAYS.items() if re.match(pattern, command.text)), ""
        )
        running = self.start(command, until_interrupted=bool(ready))
        if not ready:
            running.check(running.process.wait(LIMIT_S))
            return running.output()
        try:
            running.await_output(ready)
            if SERVES.match(command.text):
                self.server = running
            else:
                self._watch(running)
        except BaseException:
            running.kill()
            raise
        return running.output()

    @property
    def address(self) -> str:
        """The address of the server that runs during the other commands."""
        found = (
            re.search(r"is served at (\S+)", self.server.output())
            if self.server is not None
            else None
        )
        return found[1] if found is not None else ADDRESS

    def _watch(self, running: "Running") -> None:
        """A turn is served, which a tap writes; then Ctrl-C."""
        assert self.server is not None, f"{running}: no server runs"
        body = {
            "model": "turnwire-demo",
            "max_tokens": 200,
            "messages": [{"role": "user", "content": "Hello."}],
        }
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{self.address}/v1/messages", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            assert json.loads(answer.read())["stop_reason"] == "end_turn"
        target = TARGET.match(running.command.text)
        if target is not None:
            file = self.clone / target[1]
            await_condition(lambda: file.is_file() and file.stat().st_size > 0, str(running))
        running.interrupt()

    def start(self, command: Command, *, until_interrupted: bool) -> "Running":
        text = command.text.replace(ADDRESS, self.address)
        for placeholder, value in PLACEHOLDERS.items():
            text = text.replace(placeholder, value)
        state = shlex.quote(str(self._state))
        script = f". {state}\nexec {text}"
        if not until_interrupted:
            script = f". {state}\n{text}\nstatus=$?\nexport -p > {state}\nexit $status"
        self._outputs += 1
        log = self.directory / f"output-{self._outputs}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.clone,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Running(command, process, log)


@dataclass
class Running:
    """A command in its shell."""

    command: Command
    process: "subprocess.Popen[bytes]"
    log: Path

    def __str__(self) -> str:
        return f"{self.command.place}: {self.command.text}\n{self.output()[-3000:]}"

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def await_output(self, text: str) -> None:
        await_condition(lambda: text in self.output() or self.process.poll() is not None, str(self))
        assert text in self.output(), f"it ended with {self.process.poll()}: {self}"

    def check(self, status: int) -> None:
        """The status is 0; a transcript's lines are in the output."""
        if not self.command.transcript:
            assert status == 0, f"status {status}: {self}"
        printed = " ".join(self.output().split())
        for line in self.command.output:
            if re.search(r"\w", line):
                assert " ".join(line.split()) in printed, f"{line!r} is missing: {self}"

    def interrupt(self) -> None:
        """Ctrl-C: to all processes of the shell's command. `make` reports it by its own status."""
        os.killpg(self.process.pid, signal.SIGINT)
        status = self.process.wait(LIMIT_S)
        assert status == 0 or self.command.text.startswith("make"), f"status {status}: {self}"

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def await_condition(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


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


def test_commands_that_do_not_work_are_found(tmp_path: Path) -> None:
    (tmp_path / "clone").mkdir()
    someone = Reader(tmp_path)
    someone.type(Command("p:1", "export WORD=word; cd /"))
    assert "word" in someone.type(Command("p:1", "echo $WORD"))
    someone.type(Command("p:2", "echo an  error; false", output=["an error"], transcript=True))
    with pytest.raises(AssertionError, match="status 3: p:3: exit 3"):
        someone.type(Command("p:3", "exit 3"))
    with pytest.raises(AssertionError, match="'another' is missing: p:4"):
        someone.type(Command("p:4", "echo an error", output=["another"], transcript=True))
    someone.type(Command("p:5", "content", file="f"))
    assert someone.type(Command("p:6", "cat f")) == "content"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_command_works_as_written(reader: Reader) -> None:
    typed = 0
    for page in PAGES:
        for command in commands(page):
            if (
                command.skipped
                or command.containers
                or (reader.server and SERVES.match(command.text))
            ):
                continue
            reader.type(command)
            typed += 1
            if SERVES.match(command.text):
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
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no Docker daemon runs here")
    if subprocess.run(
        ["docker", "compose", "version"], capture_output=True, check=False
    ).returncode:
        pytest.skip("docker has no compose")
    images = {
        "TURNWIRE_COMPOSE_BASE": "python:3.12-slim",
        "TURNWIRE_COMPOSE_NATS_IMAGE": "nats:2.15-alpine",
        "TURNWIRE_COMPOSE_PROXY_IMAGE": "haproxy:3.2-alpine",
    }
    for name, image in images.items():
        wanted = os.environ.get(name, image)
        for how in ("image inspect", "pull"):
            if not subprocess.run(
                ["docker", *how.split(), wanted], capture_output=True, check=False
            ).returncode:
                break
        else:
            pytest.skip(f"there is no image {wanted} here, and no registry ({name} names another)")
    port = free_port()
    own = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("TURNWIRE_COMPOSE_", "DOCKER_"))
    }
    reader.environment |= {
        **own,
        "HOME": str(Path.home()),
        "COMPOSE_PROJECT_NAME": f"turnwire-docs-{port}",
        "TURNWIRE_COMPOSE_LISTEN": f"127.0.0.1:{port}",
    }
    down = Command("the end", "docker compose down --volumes --timeout 10")
    typed = 0
    try:
        for page in PAGES:
            for command in commands(page):
                if not command.containers or command.skipped:
                    continue
                typed += 1
                if "compose up" not in command.text:
                    reader.type(command)
                    continue
                running = reader.start(command, until_interrupted=True)
                try:
                    await_condition(
                        lambda: ready(port) or running.process.poll() is not None,  # noqa: B023
                        str(running),
                    )
                    assert running.process.poll() is None, f"it ended: {running}"
                    running.process.send_signal(
                        signal.SIGINT
                    )  # Compose passes it on, and ends with a status of its own
                    running.process.wait(LIMIT_S)
                finally:
                    running.kill()
    finally:
        reader.type(down)
    assert typed >= 2


def ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            return bool(json.loads(answer.read())["ready"])
    except (OSError, ValueError):
        return False
