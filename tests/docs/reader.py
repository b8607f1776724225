"""Types the commands of pages into a shell, in a fresh copy of the repository."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.docs.commands import Command

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md"))),
]
"""Every page with commands, from the root of the repository."""
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
ADDRESS = "http://127.0.0.1:8000"
"""The address of `make up`, which takes a free port here."""
PLACEHOLDERS = {
    "--model DIR": "--model ~/.local/state/turnwire/demo-model",
    "--metrics-port 9100": "--metrics-port 0",
}
"""The values that a reader fills in, and a port that another process may have."""


def copy_repository(to: Path) -> None:
    """What `git clone` would give, with the changes that are not committed."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def environment(home: Path) -> dict[str, str]:
    """A new user's, with the caches and indexes of pip on this machine. Servers choose a free
    port."""
    own = Path.home()
    # `make test-all ARGS=…` exports its own variables to each make below it.
    make = ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "ARGS")
    theirs = ("VIRTUAL_ENV", "PYTHONPATH", "TURNWIRE_", "XDG_", "PYTEST_", *make)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    pip = {"PIP_CACHE_DIR": str(own / ".cache" / "pip")}
    if (own / ".config" / "pip" / "pip.conf").is_file():
        pip["PIP_CONFIG_FILE"] = str(own / ".config" / "pip" / "pip.conf")
    return {**pip, **kept, "HOME": str(home), "TURNWIRE_PORT": "0", "TURNWIRE_INSPECT_PORT": "0"}


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
        running = self._start(command, until_interrupted=bool(ready))
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
        output = "" if self.server is None else self.server.output()
        found = re.search(r"is served at (\S+)", output)
        return found[1] if found is not None else ADDRESS

    def _watch(self, running: "Running") -> None:
        """A turn is served, which a tap writes; then Ctrl-C."""
        assert self.server is not None, f"{running}: no server runs"
        messages = [{"role": "user", "content": "Hello."}]
        body = {"model": "turnwire-demo", "max_tokens": 200, "messages": messages}
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

    def _start(self, command: Command, *, until_interrupted: bool) -> "Running":
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
