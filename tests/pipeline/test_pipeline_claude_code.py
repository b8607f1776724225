"""Claude Code itself, from npm, does its work against a running Turnwire.

Skipped, saying why, where npm or the client cannot be had. `TURNWIRE_CLIENTS_DIR` keeps the client between runs.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.cli.demo_model import build_demo_model
from tests.conftest import NatsServer
from tests.pipeline.stack import MODEL, Stack

VERSION = "2.1.328"
PACKAGE = f"@anthropic-ai/claude-code@{VERSION}"
CLIENTS = Path(os.environ.get("TURNWIRE_CLIENTS_DIR", Path.home() / ".cache" / "turnwire-clients"))
INSTALL_S = 300
RUN_S = 120

pytestmark = pytest.mark.timeout(INSTALL_S + RUN_S)


@pytest.fixture(scope="session")
def claude() -> Path:
    """The client's binary."""
    prefix = CLIENTS / "cc"
    binary = prefix / "node_modules" / "@anthropic-ai" / "claude-code-linux-x64" / "claude"
    if not binary.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("Claude Code is not installed and there is no npm to install it with")
        prefix.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(prefix), PACKAGE]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm did not deliver {PACKAGE} within {INSTALL_S} s")
        if done.returncode or not binary.exists():
            pytest.skip(f"npm cannot install {PACKAGE} here: {done.stderr[-300:]}")
    return binary


@pytest.fixture(scope="module")
def agent_stack(nats: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The demo as `turnwire up` starts it: the scripted agent answers."""
    running = Stack(nats, build_demo_model(tmp_path_factory.mktemp("m") / MODEL), tmp_path_factory.mktemp("agent"))
    options = {stage: {"served_model_name": "acme/agent"} for stage in ("parser", "preprocessor")}
    options["worker"] = {"served_model_name": "acme/agent", "script_mode": "agent", "token_delay_ms": 1}
    try:
        yield running.start_all(**options)
    finally:
        running.stop()


class Session:
    """One user's machine: a home, a project, and the client in it."""

    def __init__(self, binary: Path, url: str, model: str, directory: Path) -> None:
        self.binary = binary
        self.model = model
        self.project = directory / "project"
        home = directory / "home"
        for folder in (self.project, home / "tmp"):
            folder.mkdir(parents=True)
        self.environment = {
            "HOME": str(home),
            "TMPDIR": str(home / "tmp"),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "SHELL": "/bin/bash",
            "NO_PROXY": "127.0.0.1,localhost",
            # Whatever does not go to this machine goes nowhere: the run shows what Turnwire alone can serve.
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "HTTP_PROXY": "http://127.0.0.1:9",
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "dummy",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    def ask(self, prompt: str, *more: str) -> list[dict[str, Any]]:
        """Runs the client to its end; returns what it reports, line by line."""
        command = [str(self.binary), *more, "-p", prompt, "--model", self.model, "--output-format", "stream-json"]
        command += ["--verbose", "--allowedTools", "Bash,Read,Write,Edit"]
        done = subprocess.run(
            command,
            cwd=self.project,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert lines[-1]["type"] == "result"
        assert not lines[-1]["is_error"], lines[-1]
        return lines


def shell(command: str) -> str:
    return (
        f"Use your shell tool to run exactly this command and nothing else: `{command}`. "
        "After it succeeded, answer with the single word DONE."
    )


def test_a_loop_a_second_turn_and_what_each_left_on_disk(claude: Path, agent_stack: Stack, tmp_path: Path) -> None:
    session = Session(claude, agent_stack.url, "acme/agent", tmp_path)
    lines = session.ask(shell("echo first > proof.txt"))
    assert (session.project / "proof.txt").read_text() == "first\n"
    assert lines[-1]["result"].strip() == "DONE"
    lines = session.ask(shell("echo second > follow.txt"), "--continue")
    assert (session.project / "follow.txt").read_text() == "second\n"
    assert lines[-1]["result"].strip() == "DONE"


def test_parallel_calls(claude: Path, agent_stack: Stack, tmp_path: Path) -> None:
    session = Session(claude, agent_stack.url, "acme/agent", tmp_path)
    session.ask(
        "In one single response make three shell tool calls in parallel, exactly these commands: "
        "`echo 1 > p1.txt` , `echo 2 > p2.txt` , `echo 3 > p3.txt`. "
        "After all succeeded, answer with the single word DONE."
    )
    assert [(session.project / f"p{n}.txt").read_text() for n in (1, 2, 3)] == ["1\n", "2\n", "3\n"]


def test_interleaved_thoughts_and_calls_keep_their_order(claude: Path, stack: Stack, tmp_path: Path) -> None:
    def call(command: str) -> str:
        parameters = f"<parameter=command>\n{command}\n</parameter>\n<parameter=description>\nruns it\n</parameter>\n"
        return f"<tool_call>\n<function=Bash>\n{parameters}</function>\n</tool_call>"

    first = (
        f"First thought.\n</think>\n\nI begin.\n\n{call('echo a >> order.txt')}\n"
        f"<think>\nSecond thought.\n</think>\n\n{call('echo b >> order.txt')}\n\nBoth asked."
    )
    second = "Third thought.\n</think>\n\nAll done."
    session = Session(claude, stack.url, MODEL, tmp_path)
    lines = session.ask(f"[[say]]{first}[[/say]][[say]]{second}[[/say]]")
    kinds = [
        (block["type"], block.get("thinking") or block.get("text") or block["input"]["command"])
        for line in lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    assert [(kind, text.strip()) for kind, text in kinds] == [
        ("thinking", "First thought."),
        ("text", "I begin."),
        ("tool_use", "echo a >> order.txt"),
        ("thinking", "Second thought."),
        ("tool_use", "echo b >> order.txt"),
        ("text", "Both asked."),
        ("thinking", "Third thought."),
        ("text", "All done."),
    ]
    assert (session.project / "order.txt").read_text() == "a\nb\n"
