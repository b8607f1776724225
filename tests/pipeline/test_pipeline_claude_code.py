"""Claude Code itself, from npm, does its work against a running Turnwire.

Skipped, saying why, where npm or the client cannot be had. `TURNWIRE_CLIENTS_DIR` keeps the client between runs.
"""

import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import AGENT, WINDOW
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


def tokens_of(stack: Stack, text: str) -> int:
    body = json.dumps({"model": AGENT, "prompt": text}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{stack.url}/v1/tokenize", body), timeout=10) as answer:
        return int(json.loads(answer.read())["count"])


def test_a_loop_a_second_turn_and_what_each_left_on_disk(claude: Path, agent_stack: Stack, tmp_path: Path) -> None:
    session = Session(claude, agent_stack.url, AGENT, tmp_path)
    lines = session.ask(shell("echo first > proof.txt"))
    assert (session.project / "proof.txt").read_text() == "first\n"
    assert lines[-1]["result"].strip() == "DONE"
    lines = session.ask(shell("echo second > follow.txt"), "--continue")
    assert (session.project / "follow.txt").read_text() == "second\n"
    assert lines[-1]["result"].strip() == "DONE"


def test_parallel_calls(claude: Path, agent_stack: Stack, tmp_path: Path) -> None:
    session = Session(claude, agent_stack.url, AGENT, tmp_path)
    session.ask(
        "In one single response make three shell tool calls in parallel, exactly these commands: "
        "`echo 1 > p1.txt` , `echo 2 > p2.txt` , `echo 3 > p3.txt`. "
        "After all succeeded, answer with the single word DONE."
    )
    assert [(session.project / f"p{n}.txt").read_text() for n in (1, 2, 3)] == ["1\n", "2\n", "3\n"]


def test_what_does_not_fit_the_window_is_compacted_and_the_work_goes_on(
    claude: Path, agent_stack: Stack, tmp_path: Path
) -> None:
    """The client takes the window to be a million tokens; that our 400 says otherwise is all it has."""
    session = Session(claude, agent_stack.url, AGENT, tmp_path)
    usage = session.ask("Answer with the single word DONE.")[-1]["usage"]
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    line = "alpha beta gamma delta epsilon zeta eta theta"
    # A little over the window: the client must be able to send all but the beginning for its summary.
    lines_over = (WINDOW - prompt) // tokens_of(agent_stack, f"100\t{line}\n")
    (session.project / "big.txt").write_text("\n".join([line] * lines_over))
    lines = session.ask("Read the file `big.txt`, then answer with the single word DONE.")
    compactions = [line for line in lines if line.get("subtype") == "compact_boundary"]
    assert [line["compact_metadata"]["trigger"] for line in compactions] == ["auto"]
    after = lines[lines.index(compactions[0]) :]
    assert any(line["type"] == "assistant" for line in after)


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
