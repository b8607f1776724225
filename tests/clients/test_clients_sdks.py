"""Runs the SDKs' own resource tests against Turnwire.

They are in the source distributions, which are kept in `AGENT_CLIENTS_DIR`, and are skipped with
the reason where no package index is reachable.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.clients.packages import HOME, installing
from tests.kit.stack import Stack

NEEDS = ("http-snapshot[httpx]==0.1.9", "inline-snapshot")
"""What the conftests import; the resource tests hardly use it."""
OPENAI_PLAIN = ("tests/api_resources/test_completions.py", "tests/api_resources/test_models.py")
OPENAI_RESPONSES = ("tests/api_resources/test_responses.py", "tests/api_resources/responses")
INSTALL_S = 180
RUN_S = 300
PLUGINS = Path(__file__).parent

pytestmark = pytest.mark.timeout(2 * INSTALL_S + RUN_S)


def sources(spec: str, folder: Path) -> Path:
    """A source distribution, unpacked, and the requirements of its tests in its folder `needs`."""
    kept = HOME / "sdk-tests" / spec
    with installing(kept):
        if not (kept / "needs").is_dir():
            shutil.rmtree(kept, ignore_errors=True)
            shutil.move(_unpacked(spec, folder), kept)
    return kept


def _unpacked(spec: str, folder: Path) -> Path:
    """Downloads and unpacks it into `folder`. Skips the test if that is not possible."""
    name = spec.partition("==")[0]
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--retries", "0"]
    fetch = [*pip, "download", "--no-deps", "--no-binary", name, "-d", str(folder), spec]
    needs = [*pip, "install", "--target", str(folder / "needs"), *NEEDS]
    for command in (fetch, needs):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL_S, check=False
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"the package index did not answer within {INSTALL_S} s")
        if done.returncode:
            pytest.skip(f"the SDK's tests cannot be had here: {done.stderr[-300:]}")
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    unpacked = next(path for path in folder.iterdir() if (path / "tests").is_dir())
    (folder / "needs").rename(unpacked / "needs")
    return unpacked


def resources(tree: Path, url: str, *arguments: str) -> str:
    """Runs them; returns pytest's last line. Raises AssertionError where one fails."""
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts="]
    command = [*pytest_command, "-p", "no:cacheprovider", *arguments]
    paths = map(str, (tree, tree / "needs", PLUGINS))
    environment = {**os.environ, "TEST_API_BASE_URL": url, "PYTHONPATH": os.pathsep.join(paths)}
    options: dict[str, Any] = {"cwd": tree, "env": environment, "timeout": RUN_S}
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return done.stdout.strip().rpartition("\n")[2]


def test_anthropics_sdk_reads_every_answer(stack: Stack, tmp_path: Path) -> None:
    """Beta's create with all parameters names MCP servers, and a compaction beside
    `context_management`, which is refused natively, too."""
    tree = sources("anthropic==2.14.0", tmp_path)
    files = [f"tests/api_resources/{name}" for name in ("test_messages.py", "test_models.py")]
    assert resources(tree, stack.url, *files).startswith("110 passed")
    beta = [f"tests/api_resources/beta/{name}" for name in ("test_messages.py", "test_models.py")]
    assert resources(tree, stack.url, "-k", "not create_with_all_params", *beta).startswith(
        "95 passed"
    )


@pytest.mark.parametrize(
    ("passed", "arguments"),
    [
        ("80 passed", ("-k", "not (Models and delete and not path_params)", *OPENAI_PLAIN)),
        ("40 passed", ("-k", "create", "tests/api_resources/chat/test_completions.py")),
        ("175 passed", ("-p", "openai_seed", *OPENAI_RESPONSES)),
    ],
    ids=["completions and models", "chat", "responses"],
)
def test_openais_sdk_reads_every_answer(
    stack: Stack, tmp_path: Path, passed: str, arguments: tuple[str, ...]
) -> None:
    """All but the deletion of models and stored chat completions, which are not served; see also
    `openai_seed`."""
    tree = sources("openai==3.57.0", tmp_path)
    assert resources(tree, f"{stack.url}/v1", *arguments).startswith(passed)
