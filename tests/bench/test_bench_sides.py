"""The sides of a comparison: their processes, what those cost, and Dynamo's worker on stand-ins for
its bindings."""

import asyncio
import importlib
import os
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

from bench import cpu
from bench.clocks import Marks
from bench.dynamo import MODEL, install
from bench.dynamo.stack import dynamo_stack
from bench.model import build_bench_model, without_opening
from bench.stack import SCRIPTS, StackFailed, own_stack

BURN = "import time\nwhile time.process_time() < 0.2: pass\nprint('burnt', flush=True)\ninput()"


@pytest.fixture
def burner() -> Iterator[subprocess.Popen[str]]:
    """Uses 0.2 s of CPU time, prints a line, and waits."""
    command = [sys.executable, "-c", BURN]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def test_cpu_and_memory_of_processes(burner: subprocess.Popen[str]) -> None:
    meter = cpu.Meter({"burner": burner.pid})
    meter.start()
    before = cpu.cpu_seconds(burner.pid)
    assert burner.stdout is not None
    assert burner.stdout.readline() == "burnt\n"
    cost = meter.stop()
    assert 0.2 <= cpu.cpu_seconds(burner.pid) < 1.0
    assert cost.processes["burner"] >= 0.2 - before - 0.01
    assert cost.client < cost.processes["burner"]
    held = cpu.memory(os.getpid())
    assert 5 < held.rss <= held.peak

    burner.kill()
    burner.wait()
    with pytest.raises(ProcessLookupError, match="burner"):
        meter.stop()
    for ask in (cpu.cpu_seconds, cpu.memory, cpu.stages):
        with pytest.raises(ProcessLookupError):
            ask(burner.pid)


LEADER = """
import subprocess, sys
wait = "import sys; sys.stdin.read()"
names = ["services.parser", "services.parser", "services.frontend", "other"]
kept = [subprocess.Popen([sys.executable, "-c", wait, name], stdin=-1) for name in names]
print("ready", flush=True)
sys.stdin.read()
"""


def test_stages_are_found_among_grandchildren() -> None:
    command = [sys.executable, "-c", LEADER]
    up = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert up.stdout is not None
    assert up.stdout.readline() == "ready\n"
    found = cpu.stages(up.pid)
    up.communicate()
    other = Path(sys.executable).name
    assert set(found) == {"frontend", "parser", "parser-2", "up", other}
    assert found["up"] == up.pid


def test_pids_are_named() -> None:
    assert cpu.parse_pids(["worker=12", "a-2=3"]) == {"worker": 12, "a-2": 3}
    for pair in ("worker", "=1", "worker=x"):
        with pytest.raises(ValueError, match="name=pid"):
            cpu.parse_pids([pair])


def test_last_complete_line_of_a_mark_counts(tmp_path: Path) -> None:
    path = tmp_path / "marks"
    path.write_text("a open 1\na body 7\na close 20\nb close 30\na close 25\na clo")
    marks = Marks(path)
    assert [marks.left_at("close", play_id) for play_id in "abc"] == [25, 30, None]
    assert marks.left_at("body", "a") == 7


@pytest.mark.slow
async def test_stack_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StackFailed, match="ended with status 2"):
        async with own_stack(["--no-such-flag"]):
            pass

    # Another checkout runs its own code, without our variables.
    main = tmp_path / "services" / "cli" / "main.py"
    main.parent.mkdir(parents=True)
    for package in (main.parent, main.parent.parent):
        (package / "__init__.py").touch()
    shown = "services.__file__, os.getcwd(), os.environ.get('TURNWIRE_PEERS')"
    main.write_text(f"import os, services; print({shown})")
    monkeypatch.setenv("TURNWIRE_PEERS", "somewhere")
    with pytest.raises(StackFailed, match=rf"{main.parent.parent}/__init__.py {tmp_path} None"):
        async with own_stack(root=tmp_path):
            pass


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


def test_environment_of_another_version_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNWIRE_PEERS", str(tmp_path))
    where = tmp_path / "dynamo" / "venv"
    assert not install.installed()
    done: list[Any] = []
    monkeypatch.setattr("venv.create", lambda path, **options: done.append((path, options)))
    monkeypatch.setattr("subprocess.run", lambda command, check: done.append(command[-1]))
    assert install.install(lambda line: None) == where / "bin" / "python"
    created = (where, {"with_pip": True, "clear": True})
    assert done == [created, install.DYNAMO[-1], install.NEEDED[-1]]


def test_model_leaves_it_to_its_output_to_think(model: Path) -> None:
    template = (model / "chat_template.jinja").read_text()
    assert "{{- '<|im_start|>assistant\\n' }}\n" in template
    assert "assistant\\n<think>" not in template
    assert build_bench_model(model) == model  # as it is
    assert (model / "chat_template.jinja").read_text() == template
    with pytest.raises(ValueError, match="another way"):
        without_opening("{{ messages }}")


@pytest.fixture(scope="module")
def model(demo_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "model"
    shutil.copytree(demo_dir, path)
    return build_bench_model(path)


@pytest.fixture(scope="module")
def worker() -> Iterator[Any]:
    """The worker's module, on bindings that do nothing."""
    bindings = {
        "dynamo": [],
        "dynamo.llm": [
            "ModelInput",
            "ModelRuntimeConfig",
            "ModelType",
            "WorkerType",
            "register_model",
        ],
        "dynamo.runtime": ["DistributedRuntime"],
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, members in bindings.items():
            module = ModuleType(name)
            for member in members:
                setattr(module, member, None)
            patch.setitem(sys.modules, name, module)
        yield importlib.import_module("bench.dynamo.worker")
    sys.modules.pop("bench.dynamo.worker")


class Context:
    """A request's context, which is stopped after some tokens."""

    def __init__(self, stop_after: int = 1 << 20) -> None:
        self._left = stop_after

    def is_stopped(self) -> bool:
        self._left -= 1
        return self._left < 0


async def played(
    player: Any, text: str, context: Context | None = None, **conditions: Any
) -> list[dict[str, Any]]:
    request = {"token_ids": player.encode(text), "stop_conditions": conditions}
    return [chunk async for chunk in player.generate(request, context or Context())]


async def test_worker_sends_one_token_a_chunk(worker: Any, model: Path, tmp_path: Path) -> None:
    player = worker.Player(model, SCRIPTS, tmp_path / "marks")
    chunks = await played(player, "Go on. [[play text n=5]]<|im_end|>")
    assert [len(chunk["token_ids"]) for chunk in chunks] == [1] * 6
    assert [chunk.get("finish_reason") for chunk in chunks] == [None] * 5 + ["stop"]
    chunks = await played(player, "[[play text n=5]]", max_tokens=3)
    assert [len(chunk["token_ids"]) for chunk in chunks] == [1, 1, 1, 0]
    chunks = await played(player, "[[play text n=50 delay=1]]", Context(stop_after=3))
    assert len(chunks) == 4
    with pytest.raises(ValueError, match="names no script"):
        await played(player, "Go on.")

    before = time.monotonic_ns()
    await played(player, "[[play call_then_text n=2 id=a]]")
    marks = Marks(tmp_path / "marks")
    assert before < (marks.left_at("body", "a") or 0) < (marks.left_at("close", "a") or 0)


async def test_streams_of_one_pace_are_stepped_together(worker: Any) -> None:
    steps = worker.Steps()
    period = 2_000_000
    first, second, other = steps.wait(period), steps.wait(period), steps.wait(2 * period)
    assert first is second
    assert first is not other
    await asyncio.wait_for(first, 60)
    assert steps.wait(period) is not first
    await asyncio.wait_for(other, 60)


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
