"""Real clients that only `turnwire connect --write` has configured do a task; Codex uses the
intended profile."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.packages import CLAUDE_CODE, CODEX, INSTALL_S, NODE, OPENCLAW, OPENCODE
from tests.kit.stack import MODEL, Stack
from tests.pipeline.conftest import AGENT, WINDOW

ROOT = Path(__file__).parents[2]
RUN_S = 120
PROOF = (
    "Use your shell tool to run exactly this command and nothing else: `echo proof > proof.txt`. "
    "After it succeeded, answer with the single word DONE."
)

pytestmark = [pytest.mark.clients, pytest.mark.timeout(INSTALL_S + RUN_S)]


class Home:
    """A user's machine with nothing on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "home"
        self.project = directory / "project"
        for folder in (self.directory / "tmp", self.project):
            folder.mkdir(parents=True)
        self.environment = {
            "HOME": str(self.directory),
            "TMPDIR": str(self.directory / "tmp"),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "SHELL": "/bin/bash",
            "NO_PROXY": "127.0.0.1,localhost",
            # Whatever does not go to this machine goes nowhere: the run shows what Turnwire alone
            # can serve.
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "HTTP_PROXY": "http://127.0.0.1:9",
            "DISABLE_TELEMETRY": "1",
            "DO_NOT_TRACK": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        }

    def connect(self, client: str, url: str, *more: str) -> str:
        """`turnwire connect` as this user runs it."""
        command = [
            sys.executable,
            "-m",
            "services.cli.main",
            "connect",
            client,
            "--url",
            url,
            "--write",
            *more,
        ]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, *command: str | Path) -> str:
        """A client, to its end; returns what it prints."""
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.project,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    def codex(self, prompt: str, *more: str) -> list[dict[str, Any]]:
        """`codex exec` with our profile; returns what it reports."""
        options = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
        printed = self.run(CODEX.find(), "--profile", "turnwire", *more, "exec", *options, prompt)
        lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        problems = [
            line
            for line in lines
            if "error" in line["type"] or line.get("item", {}).get("type") == "error"
        ]
        assert problems == [], "no fallback profile, no retry"
        assert lines[-1]["type"] == "turn.completed"
        return lines

    @property
    def proof(self) -> str:
        """What the shell tool has written."""
        return (self.project / "proof.txt").read_text()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_claude_code_is_served(agent_stack: Stack, home: Home) -> None:
    home.connect("claude", agent_stack.url)
    options = ("--output-format", "stream-json", "--verbose", "--allowedTools", "Bash")
    lines = home.run(CLAUDE_CODE.find(), "-p", PROOF, *options).splitlines()
    assert home.proof == "proof\n"
    usage = json.loads(lines[-1])["modelUsage"][AGENT]
    assert usage["contextWindow"] == WINDOW, "not the million that it assumes"


def test_opencode_is_connected(agent_stack: Stack, home: Home) -> None:
    home.connect("opencode", agent_stack.url)
    assert '"type":"error"' not in home.run(OPENCODE.find(), "run", "--format", "json", PROOF)
    assert home.proof == "proof\n"


def test_openclaw_is_connected(agent_stack: Stack, home: Home) -> None:
    home.connect("openclaw", agent_stack.url)
    home.run(NODE.find(), OPENCLAW.find(), "agent", "exec", "--cwd", home.project, "--json", PROOF)
    assert home.proof == "proof\n"


@pytest.mark.parametrize(
    "catalogue", [(), ("--catalog-file",), ("--websockets",)], ids=["url", "file", "websockets"]
)
def test_codex_is_served(agent_stack: Stack, home: Home, catalogue: tuple[str, ...]) -> None:
    settings = home.directory / ".codex" / "config.toml"
    settings.parent.mkdir()
    settings.write_text('model = "gpt-6-sol"\n')
    home.connect("codex", agent_stack.url, *catalogue)
    home.codex(PROOF)
    assert home.proof == "proof\n"
    assert settings.read_text() == 'model = "gpt-6-sol"\n', (
        "the user's own settings are as they were"
    )


def test_codex_applies_a_patch_that_the_model_writes(stack: Stack, home: Home) -> None:
    """Only with a profile is the tool offered at all; its raw input is what the model wrote."""
    home.connect("codex", stack.url, "--model", MODEL)
    patch = '*** Begin Patch\n*** Add File: made.txt\n+by a "patch" é\n*** End Patch'
    call = f"<tool_call>\n<function=apply_patch>\n<parameter=input>\n{patch}\n</parameter>\n</function>\n</tool_call>"
    said = (
        f"[[say]]A file.\n</think>\n\n{call}[[/say]][[say]]It is there.\n</think>\n\nDONE[[/say]]"
    )
    lines = home.codex(f"Add a file. {said}")
    assert (home.project / "made.txt").read_text() == 'by a "patch" é\n'
    kinds = [line["item"]["type"] for line in lines if line["type"] == "item.completed"]
    assert kinds == ["reasoning", "file_change", "reasoning", "agent_message"]
