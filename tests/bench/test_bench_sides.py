"""The sides of a comparison: their processes, what those cost, and Dynamo's worker on stand-ins for
its bindings."""

import importlib
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

from bench.clocks import Marks
from bench.dynamo import MODEL, install
from bench.dynamo.stack import dynamo_stack
from bench.model import build_bench_model
from bench.stack import SCRIPTS, StackFailed

STAND_IN = """#!{python}
import http.server, sys, time
module, arguments = sys.argv[2], sys.argv[3:]
print("started", module, *arguments, file=sys.stderr, flush=True)
if module != "dynamo.frontend":
    time.sleep(60)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{{"data":[{{"id":"{model}"}}]}}')
    def log_message(self, *arguments):
        pass
port = next(int(word.partition("=")[2]) for word in arguments if word.startswith("--http-port="))
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""
"""Stands in for the Python of Dynamo's environment."""


def stand_in(directory: Path, text: str = STAND_IN) -> Path:
    path = directory / "python"
    path.write_text(text.format(python=sys.executable, model=MODEL))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def words(pid: int) -> list[str]:
    """The command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


async def test_dynamo_and_its_worker_run_and_are_ended(tmp_path: Path) -> None:
    python = stand_in(tmp_path)
    async with dynamo_stack(python, tmp_path, ("--tokenizer", "fastokens")) as stack:
        frontend = words(stack.pids["frontend"])
        assert "bench.dynamo.worker" in words(stack.pids["worker"])
    assert "--http-host=127.0.0.1" in frontend
    assert frontend[-3:-1] == ["--tokenizer", "fastokens"]
    assert not any(Path(f"/proc/{pid}").exists() for pid in stack.pids.values())

    async with dynamo_stack(python, tmp_path / "model", mock_engine=True) as stack:
        worker = words(stack.pids["worker"])
    assert "dynamo.mocker" in worker
    assert f"--model-path={tmp_path / 'model'}" in worker

    broken = stand_in(tmp_path, "#!{python}\nimport sys\nsys.exit('no such flag')\n")
    with pytest.raises(StackFailed, match="no such flag"):
        async with dynamo_stack(broken, tmp_path):
            pytest.fail("it answers")


@pytest.fixture(scope="module")
def model(demo_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "model"
    shutil.copytree(demo_dir, path)
    return build_bench_model(path)


@pytest.fixture(scope="module")
def worker() -> Iterator[Any]:
    """The worker's module, on bindings that do nothing."""
    bindings = {
        "dynamo": "",
        "dynamo.llm": "ModelInput ModelRuntimeConfig ModelType WorkerType register_model",
        "dynamo.runtime": "DistributedRuntime",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, members in bindings.items():
            module = ModuleType(name)
            for member in members.split():
                setattr(module, member, None)
            patch.setitem(sys.modules, name, module)
        yield importlib.import_module("bench.dynamo.worker")
    sys.modules.pop("bench.dynamo.worker")


class Context:
    """A request's context."""

    def is_stopped(self) -> bool:
        return False


async def played(player: Any, text: str, **conditions: Any) -> list[dict[str, Any]]:
    request = {"token_ids": player.encode(text), "stop_conditions": conditions}
    return [chunk async for chunk in player.generate(request, Context())]


async def test_worker_sends_one_token_a_chunk(worker: Any, model: Path, tmp_path: Path) -> None:
    player = worker.Player(model, SCRIPTS, tmp_path / "marks")
    chunks = await played(player, "Go on. [[play text n=5]]<|im_end|>")
    assert [len(chunk["token_ids"]) for chunk in chunks] == [1] * 6
    assert [chunk.get("finish_reason") for chunk in chunks] == [None] * 5 + ["stop"]
    chunks = await played(player, "[[play text n=5]]", max_tokens=3)
    assert [len(chunk["token_ids"]) for chunk in chunks] == [1, 1, 1, 0]
    before = time.monotonic_ns()
    await played(player, "[[play call_then_text n=2 id=a]]")
    marks = Marks(tmp_path / "marks")
    assert before < (marks.left_at("body", "a") or 0) < (marks.left_at("close", "a") or 0)


ONLY_NEEDED = """
import sys

class OnlyNeeded:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in sys.stdlib_module_names | set(sys.argv):
            raise ImportError(f"{name} is not in the environment of Dynamo")

sys.meta_path.insert(0, OnlyNeeded())
from turnwire_tools.script.player import compile_script
"""


def test_worker_imports_only_what_the_environment_of_dynamo_has() -> None:
    needed = [Requirement(name).name.replace("-", "_") for name in install.NEEDED]
    ours = ["schemas", "services", "turnwire_tools"]
    command = [sys.executable, "-c", ONLY_NEEDED, *ours, *needed]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
