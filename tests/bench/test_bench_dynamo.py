"""Dynamo beside us, without Dynamo: a stand-in for its Python, and the worker on stand-ins for its
bindings."""

import asyncio
import importlib
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

from bench.clocks import Marks
from bench.dynamo import MODEL, install
from bench.dynamo.stack import dynamo_stack
from bench.model import build_bench_model, without_opening
from bench.stack import SCRIPTS, StackFailed

STAND_IN = """#!{python}
import http.server, sys, time
module, arguments = sys.argv[2], sys.argv[3:]
print("started", module, *arguments, file=sys.stderr, flush=True)
if module != "dynamo.frontend":
    {worker}
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


def stand_in(directory: Path, worker: str = "time.sleep(60)") -> Path:
    path = directory / "python"
    path.write_text(STAND_IN.format(python=sys.executable, worker=worker, model=MODEL))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_both_processes_run_and_are_ended(tmp_path: Path) -> None:
    async with dynamo_stack(stand_in(tmp_path), tmp_path, ("--tokenizer", "fastokens")) as stack:
        assert set(stack.pids) == {"frontend", "worker"}
        assert all(alive(pid) for pid in stack.pids.values())
        command = Path(f"/proc/{stack.pids['frontend']}/cmdline").read_bytes().split(b"\0")
        assert b"--http-host=127.0.0.1" in command
        assert command[-3:-1] == [b"--tokenizer", b"fastokens"]
        assert stack.start_s > 0
    assert not any(alive(pid) for pid in stack.pids.values())


async def test_the_mock_engine_takes_the_place_of_the_worker(tmp_path: Path) -> None:
    async with dynamo_stack(stand_in(tmp_path), tmp_path / "model", mock_engine=True) as stack:
        command = Path(f"/proc/{stack.pids['worker']}/cmdline").read_bytes().decode().split("\0")
    assert "dynamo.mocker" in command
    assert f"--model-path={tmp_path / 'model'}" in command


async def test_a_stack_that_does_not_start_raises_its_output(tmp_path: Path) -> None:
    silent = stand_in(tmp_path)
    silent.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no such flag')\n")
    with pytest.raises(StackFailed, match="no such flag"):
        async with dynamo_stack(silent, tmp_path):
            pytest.fail("it answers")


def test_an_environment_of_another_version_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNWIRE_PEERS", str(tmp_path))
    assert install.interpreter() == tmp_path / "dynamo" / "venv" / "bin" / "python"
    assert not install.installed()
    done: list[Any] = []
    monkeypatch.setattr(
        "venv.create", lambda where, **options: done.append((where, options["clear"]))
    )
    monkeypatch.setattr("subprocess.run", lambda command, check: done.append(command[-1]))
    assert install.install(lambda line: None) == install.interpreter()
    assert done == [(tmp_path / "dynamo" / "venv", True), install.DYNAMO[-1], install.NEEDED[-1]]


def test_the_model_leaves_it_to_its_output_to_think(tmp_path: Path) -> None:
    model = build_bench_model(tmp_path / "model")
    template = (model / "chat_template.jinja").read_text()
    assert template.rstrip().endswith(
        "{{- '<|im_start|>assistant\\n' }}\n    {%- if enable_thinking is defined and enable_thinking is false %}\n"
        "        {{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- endif %}\n{%- endif %}"
    )
    assert build_bench_model(model) == model  # as it is
    assert (model / "chat_template.jinja").read_text() == template
    with pytest.raises(ValueError, match="another way"):
        without_opening("{{ messages }}")


@pytest.fixture(scope="module")
def worker() -> Any:
    """The worker's module, on bindings that do nothing."""
    names = (
        "ModelInput",
        "ModelRuntimeConfig",
        "ModelType",
        "WorkerType",
        "register_model",
        "DistributedRuntime",
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in ("dynamo", "dynamo.llm", "dynamo.runtime"):
            module = ModuleType(name)
            for binding in names:
                setattr(module, binding, None)
            patch.setitem(sys.modules, name, module)
        yield importlib.import_module("bench.dynamo.worker")
    sys.modules.pop("bench.dynamo.worker")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_bench_model(tmp_path_factory.mktemp("bench") / "model")


class Context:
    """A request's context."""

    def __init__(self, stop_after: int = 1 << 20) -> None:
        self._left = stop_after

    def is_stopped(self) -> bool:
        self._left -= 1
        return self._left < 0


async def played(
    player: Any, text: str, context: Context | None = None, **conditions: Any
) -> list[dict[str, Any]]:
    ids = player.encode(text)
    request = {"token_ids": ids, "stop_conditions": conditions}
    return [chunk async for chunk in player.generate(request, context or Context())]


async def test_the_worker_sends_one_token_a_chunk(worker: Any, model: Path) -> None:
    player = worker.Player(model, SCRIPTS, None)
    chunks = await played(player, "Go on. [[play text n=5]]<|im_end|>")
    assert [len(chunk["token_ids"]) for chunk in chunks] == [1] * 6
    assert [chunk.get("finish_reason") for chunk in chunks] == [None] * 5 + ["stop"]
    assert [
        len(chunk["token_ids"]) for chunk in await played(player, "[[play text n=5]]", max_tokens=3)
    ] == [
        1,
        1,
        1,
        0,
    ]
    with pytest.raises(ValueError, match="names no script"):
        await played(player, "Go on.")


async def test_the_worker_marks_tokens_and_stops_on_request(
    worker: Any, model: Path, tmp_path: Path
) -> None:
    player = worker.Player(model, SCRIPTS, tmp_path / "marks")
    before = time.monotonic_ns()
    await played(player, "[[play call_then_text n=2 id=a]]")
    marks = Marks(tmp_path / "marks")
    body, close = marks.left_at("body", "a", ""), marks.left_at("close", "a", "")
    assert body is not None
    assert close is not None
    assert before < body < close
    stopped = await played(player, "[[play text n=50 delay=1]]", Context(stop_after=3))
    assert len(stopped) == 4


async def test_streams_of_one_pace_are_stepped_together(worker: Any) -> None:
    steps = worker.Steps()
    period = 2_000_000
    first, second, other = steps.wait(period), steps.wait(period), steps.wait(2 * period)
    assert first is second
    assert first is not other
    await asyncio.wait_for(first, 60)
    assert steps.wait(period) is not first
    await asyncio.wait_for(other, 60)


def test_the_worker_imports_only_what_the_environment_of_dynamo_has() -> None:
    code = f"""
import sys

ours = {{"schemas", "services", "turnwire_tools"}}
installed = {{name.replace("-", "_") for name in {[Requirement(needed).name for needed in install.NEEDED]!r}}}

class OnlyNeeded:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names | ours | installed:
            raise ImportError(f"{{name}} is not in the environment of Dynamo")

sys.meta_path.insert(0, OnlyNeeded())
from turnwire_tools.script.player import compile_script
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
