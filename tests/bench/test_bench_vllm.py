"""The comparison with vLLM's own server, as far as it needs no vLLM: what is forced, what clients
read, the tables."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from bench.report import this_machine
from bench.vllm.measuring import DispatchRow, StreamRow, TurnRow
from bench.vllm.results import OURS, THEIRS, Result, tables
from bench.vllm.scripts import Writer
from bench.vllm.session import DIALECTS, TURNS, Session, scripts

END = "<|im_end|>"


@pytest.fixture(scope="module")
def tokenizer(demo_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(demo_dir / "tokenizer.json"))


def end_of(tokenizer: Tokenizer) -> int:
    found = tokenizer.token_to_id(END)
    assert found is not None
    return found


def written(demo_dir: Path, tokenizer: Tokenizer, prompt: str) -> str | None:
    writer = Writer(demo_dir, scripts(), end_of(tokenizer))
    writing = writer.write(tokenizer.encode(prompt).ids)
    return None if writing is None else tokenizer.decode(writing.ids, skip_special_tokens=False)


def asked(request: str, *answers: str) -> str:
    turns = "".join(f"<|im_start|>assistant\n{answer}{END}\n" for answer in answers)
    return f"<|im_start|>user\n{request}{END}\n{turns}<|im_start|>assistant\n<think>\n"


def test_a_session_writes_its_turns_and_the_closer_is_known(
    demo_dir: Path, tokenizer: Tokenizer
) -> None:
    writer = Writer(demo_dir, scripts(), end_of(tokenizer))
    writing = writer.write(tokenizer.encode(asked("[[script dispatch]] [[mark m-1]]")).ids)
    assert writing is not None
    assert writing.mark == "m-1"
    assert writing.closer is not None
    assert tokenizer.decode(writing.ids[: writing.closer + 1]).endswith("</function>\n</tool_call>")
    first, second = scripts()["crooked"][:2]
    assert written(demo_dir, tokenizer, asked("[[script crooked]]", first)) == second + END
    assert len(scripts()["crooked"]) == len(scripts()["tidy"]) == TURNS


def block_event(index: int, kind: str, **fields: object) -> dict[str, object]:
    return {"type": f"content_block_{kind}", "index": index, **fields}


CALL = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
MESSAGES = [
    {"type": "message_start", "message": {}},
    block_event(0, "start", content_block={"type": "thinking", "thinking": ""}),
    block_event(0, "delta", delta={"type": "thinking_delta", "thinking": "Hm."}),
    block_event(0, "delta", delta={"type": "signature_delta", "signature": "s"}),
    block_event(0, "stop"),
    block_event(1, "start", content_block=CALL),
    block_event(1, "delta", delta={"type": "input_json_delta", "partial_json": '{"a" :1}'}),
    block_event(1, "stop"),
]


def chunk(**delta: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": delta}]}


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
    assert answer.thinking == "Hm."
    assert (call.id, call.name, call.arguments) == ("c", "f", '{"a" :1}')
    assert call.whole_at == whole_at
    session = Session(dialect, "m", script="crooked", tokens=4000, seed=1)
    before = json.loads(session.body(0))
    session.take(answer)
    after = json.loads(session.body(1))
    assert after["messages"][-3:-2] == before["messages"][-1:]
    assert "Hm." in json.dumps(after["messages"][-2])
    assert json.dumps(after).count("billing-header") == 1


def test_tables_have_every_figure() -> None:
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
