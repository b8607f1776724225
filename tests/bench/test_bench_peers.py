"""The peers as far as they need not be installed: Dynamo's processes and worker on stand-ins, what
is forced in vLLM, what its clients read, and its tables."""

import importlib
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench.clocks import Marks
from bench.dynamo import MODEL
from bench.dynamo.stack import dynamo_stack
from bench.model import build_bench_model
from bench.report import this_machine
from bench.stack import SCRIPTS, StackFailed
from bench.vllm.measuring import DispatchRow, StreamRow, TurnRow
from bench.vllm.results import OURS, THEIRS, Result, tables
from bench.vllm.scripts import Writer
from bench.vllm.session import DIALECTS, TURNS, Session, scripts

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
    for mock_engine, module in ((False, "bench.dynamo.worker"), (True, "dynamo.mocker")):
        async with dynamo_stack(python, tmp_path, mock_engine=mock_engine) as stack:
            worker = Path(f"/proc/{stack.pids['worker']}/cmdline").read_text().split("\0")
        assert module in worker
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


def test_a_session_writes_its_turns_in_vllm_and_the_closer_is_known(demo_dir: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(demo_dir / "tokenizer.json"))
    end = tokenizer.token_to_id(END)
    assert end is not None
    writer = Writer(demo_dir, scripts(), end)

    def asked(request: str, *answers: str) -> list[int]:
        turns = "".join(f"<|im_start|>assistant\n{answer}{END}\n" for answer in answers)
        prompt = f"<|im_start|>user\n{request}{END}\n{turns}<|im_start|>assistant\n<think>\n"
        return list(tokenizer.encode(prompt).ids)

    writing = writer.write(asked("[[script dispatch]] [[mark m-1]]"))
    assert writing is not None
    assert writing.mark == "m-1"
    assert writing.closer is not None
    assert tokenizer.decode(writing.ids[: writing.closer + 1]).endswith("</function>\n</tool_call>")
    first, second = scripts()["crooked"][:2]
    writing = writer.write(asked("[[script crooked]]", first))
    assert writing is not None
    assert tokenizer.decode(writing.ids, skip_special_tokens=False) == second + END
    assert len(scripts()["crooked"]) == len(scripts()["tidy"]) == TURNS


def block_event(index: int, kind: str, **fields: object) -> dict[str, object]:
    return {"type": f"content_block_{kind}", "index": index, **fields}


def chunk(**delta: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": delta}]}


MESSAGES = [
    {"type": "message_start", "message": {}},
    block_event(0, "start", content_block={"type": "thinking", "thinking": ""}),
    block_event(0, "delta", delta={"type": "thinking_delta", "thinking": "Hm."}),
    block_event(0, "delta", delta={"type": "signature_delta", "signature": "s"}),
    block_event(0, "stop"),
    block_event(1, "start", content_block={"type": "tool_use", "id": "c", "name": "f"}),
    block_event(1, "delta", delta={"type": "input_json_delta", "partial_json": '{"a" :1}'}),
    block_event(1, "stop"),
]
CHAT = [
    chunk(role="assistant", content=""),
    chunk(reasoning="Hm."),
    chunk(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a" '}}]),
    chunk(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}]),
    {"choices": [], "usage": {}},
]


@pytest.mark.parametrize(
    ("api", "documents", "whole_at"), [("messages", MESSAGES, 7), ("chat", CHAT, 3)]
)
def test_a_client_sends_back_what_it_read(api: str, documents: list[object], whole_at: int) -> None:
    dialect = DIALECTS[api]
    events = [
        (at, b"data: " + json.dumps(document).encode()) for at, document in enumerate(documents)
    ]
    answer = dialect.read([*events, (99, b"data: [DONE]")])
    (call,) = answer.calls
    assert (answer.thinking, call.whole_at) == ("Hm.", whole_at)
    assert (call.id, call.name, call.arguments) == ("c", "f", '{"a" :1}')
    session = Session(dialect, "m", script="crooked", tokens=4000, seed=1)
    before = json.loads(session.body(0))
    session.take(answer)
    after = json.loads(session.body(1))
    assert after["messages"][-3:-2] == before["messages"][-1:]
    assert "Hm." in json.dumps(after["messages"][-2])
    assert json.dumps(after).count("billing-header") == 1


def test_tables_beside_vllm_have_every_figure() -> None:
    result = Result("2026-11-23T00:00:00Z", this_machine(), {"vllm": "0"})
    for side, cached, rate in ((THEIRS, 100, 200.0), (OURS, 150, 100.0)):
        turns = [(1, 100, 0), (2, 200, cached)]
        result.turns += [
            TurnRow(side, "messages", "crooked", turn, prompt, known, 60, 10.0, 50.0)
            for turn, prompt, known in turns
        ]
        result.streams.append(StreamRow(side, "chat", "2 layers", 16, rate, 3.0, 4.0))
        result.dispatch.append(DispatchRow(side, "messages", 2.5))
    text = tables(result)
    assert "| Messages, crooked arguments | turnwire | 200 | 50 | 10 | 50 |" in text
    assert "|  | ratio |  | **0.50** | **1.00** | **1.00** |" in text
    assert "40 at the median) and what was in the cache's last block, at most 10 tokens" in text
    assert "|  | ratio | **0.50** (0.50 to 0.50) |" in text
    assert "| Messages | 2.5 | 2.5 |" in text
