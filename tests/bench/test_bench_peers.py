"""What can be tested of the peers without installing them: Dynamo's processes and worker on
stand-ins, and the tokens that are forced in vLLM."""

import importlib
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench.dynamo import MODEL
from bench.dynamo.stack import dynamo_stack
from bench.measuring import Marks
from bench.model import build_bench_model
from bench.stack import SCRIPTS, StackFailed
from bench.vllm.scripts import Writer

STAND_IN = """#!{python}
import http.server, sys, time
module, arguments = sys.argv[2], sys.argv[3:]
if module != "dynamo.frontend":
    time.sleep(60)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{{"data":[{{"id":"{model}"}}]}}')
port = next(int(word.partition("=")[2]) for word in arguments if word.startswith("--http-port="))
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""
"""Stands in for the Python of Dynamo's environment."""
END = "<|im_end|>"


async def test_dynamo_and_its_worker_run_and_are_ended(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(STAND_IN.format(python=sys.executable, model=MODEL))
    python.chmod(0o755)
    async with dynamo_stack(python, tmp_path) as stack:
        worker = Path(f"/proc/{stack.pids['worker']}/cmdline").read_text().split("\0")
    assert "bench.dynamo.worker" in worker
    assert not any(Path(f"/proc/{pid}").exists() for pid in stack.pids.values())
    python.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no such flag')\n")
    with pytest.raises(StackFailed, match="no such flag"):
        async with dynamo_stack(python, tmp_path):
            pytest.fail("it answers")


class Context:
    """A request's context."""

    def is_stopped(self) -> bool:
        return False


async def test_worker_of_dynamo_sends_one_token_a_chunk(
    demo_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bindings = {
        "dynamo": "",
        "dynamo.llm": "ModelInput ModelRuntimeConfig ModelType WorkerType register_model",
        "dynamo.runtime": "DistributedRuntime",
    }
    for name, members in bindings.items():
        module = ModuleType(name)
        for member in members.split():
            setattr(module, member, None)
        monkeypatch.setitem(sys.modules, name, module)
    worker = importlib.import_module("bench.dynamo.worker")
    monkeypatch.delitem(sys.modules, "bench.dynamo.worker")
    model = build_bench_model(shutil.copytree(demo_dir, tmp_path / "model"))
    player = worker.Player(model, SCRIPTS, tmp_path / "marks")

    async def played(text: str, **conditions: Any) -> list[dict[str, Any]]:
        request = {"token_ids": player.encode(text), "stop_conditions": conditions}
        return [chunk async for chunk in player.generate(request, Context())]

    chunks = await played("Go on. [[play text n=5]]<|im_end|>")
    assert [len(chunk["token_ids"]) for chunk in chunks] == [1] * 6
    assert [chunk.get("finish_reason") for chunk in chunks] == [None] * 5 + ["stop"]
    chunks = await played("[[play text n=5]]", max_tokens=3)
    assert [len(chunk["token_ids"]) for chunk in chunks] == [1, 1, 1, 0]
    await played("[[play call_then_text n=2 id=a]]")
    marks = Marks(tmp_path / "marks")
    assert 0 < (marks.left_at("body", "a") or 0) < (marks.left_at("close", "a") or 0)


def test_what_a_prompt_says_is_forced_in_vllm(demo_dir: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(demo_dir / "tokenizer.json"))
    asked = "[[say]]One.[[/say]][[say]]Two <tool_call>[[/say]] [[split]]"
    prompt = f"<|im_start|>user\n{asked}{END}\n<|im_start|>assistant\nOne.{END}\n"
    ids = Writer(demo_dir).write(tokenizer.encode(f"{prompt}<|im_start|>assistant\n").ids)
    assert ids is not None
    assert tokenizer.decode(ids, skip_special_tokens=False) == f"Two <tool_call>{END}"
