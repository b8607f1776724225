"""Bodies of agents: their form, and what one has in common with the next."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.codex import codex_body
from bench.recorded import recorded_bodies
from bench.sessions import AgentSession

PLAY = "text n=16"


def common(one: bytes, other: bytes) -> float:
    """The share of `one` that both begin with."""
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    return same / len(one)


def test_codex_has_what_codex_sends() -> None:
    body: dict[str, Any] = json.loads(codex_body("m", PLAY, plain=False, head=False)(3))
    kinds = {tool["type"] for tool in body["tools"]}
    assert kinds == {"function", "custom", "tool_search", "web_search"}
    assert {item["type"] for item in body["input"]} == {
        *("message", "reasoning", "function_call", "function_call_output"),
        *("custom_tool_call", "custom_tool_call_output"),
    }
    assert body["include"] == ["reasoning.encrypted_content"]
    assert "00000003" in body["input"][-1]["content"][0]["text"]
    calls = [item["call_id"] for item in body["input"] if item["type"].endswith("_call")]
    assert calls == [item["call_id"] for item in body["input"] if item["type"].endswith("_output")]


def test_plain_codex_has_functions_only() -> None:
    body: dict[str, Any] = json.loads(codex_body("m", PLAY, plain=True, head=False)(0))
    assert {tool["type"] for tool in body["tools"]} == {"function"}
    assert {item["type"] for item in body["input"]} == {
        "message",
        "function_call",
        "function_call_output",
    }


def test_codex_repeats_its_prefix_unless_it_is_to_begin_otherwise() -> None:
    tail, head = (codex_body("m", PLAY, plain=True, head=head) for head in (False, True))
    assert common(tail(0), tail(1)) > 0.9
    assert common(head(0), head(1)) < 0.01
    assert len(head(0)) == len(head(1))


def test_recorded_bodies_ask_our_model_for_the_script(tmp_path: Path) -> None:
    folder = tmp_path / "codex-0.0.1" / "01-a"
    folder.mkdir(parents=True)
    recorded = {"body": {"model": "gpt", "input": [], "tools": [{"type": "function", "name": "f"}]}}
    (folder / "01-POST-v1-responses.json").write_text(json.dumps(recorded))
    (make,) = recorded_bodies(tmp_path, "responses", "ours", PLAY)
    body = json.loads(make(5))
    assert (body["model"], body["stream"]) == ("ours", True)
    assert f"(00000005). [[play {PLAY}]]" in body["input"][-1]["content"][0]["text"]
    assert recorded_bodies(tmp_path, "messages", "ours", PLAY) == []
    assert recorded_bodies(tmp_path, "chat", "ours", PLAY) == []


def answer(call: str) -> list[tuple[int, bytes]]:
    """The events of a turn of the script."""
    blocks = [
        ({"type": "text", "text": ""}, {"type": "text_delta", "text": "On to it."}),
        (
            {"type": "tool_use", "id": call, "name": "read_file", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"path": "main.py"}'},
        ),
    ]
    events: list[dict[str, Any]] = []
    for index, (block, delta) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    return [(at, b"data: " + json.dumps(event).encode()) for at, event in enumerate(events)]


def test_a_session_returns_what_it_received_and_grows_at_its_end() -> None:
    session = AgentSession.begin("m", 1, turn=3)
    first = session.body()
    session.take(answer("toolu_1"))
    second = session.body()
    assert second.startswith(first[:-2])
    messages = json.loads(second)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    text, call = messages[1]["content"]
    assert text == {"type": "text", "text": "On to it."}
    assert call == {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "read_file",
        "input": {"path": "main.py"},
    }
    assert messages[2]["content"][0]["tool_use_id"] == "toolu_1"
    assert messages[2]["content"][0]["content"].endswith("[[play agent delay=0]]")
    with pytest.raises(ValueError, match="without a call"):
        session.take(answer("toolu_2")[:3])


def test_a_session_has_its_size_at_its_turn() -> None:
    for turn in (5, 50):
        session = AgentSession.begin("m", 1, turn)
        for number in range(turn - 1):
            session.take(answer(f"toolu_{number}"))
        assert 235_000 < len(session.body()) < 265_000
        before = len(session.body())
        session.take(answer("toolu_later"))
        assert 2_000 < len(session.body()) - before < 2_600


def test_forks_of_a_session_share_all_but_the_last_result() -> None:
    session = AgentSession.begin("m", 1, turn=4)
    session.take(answer("toolu_1"))
    session.take(answer("toolu_2"))
    one, other = session.fork(1), session.fork(2)
    messages = [json.loads(each.body())["messages"] for each in (session, one, other)]
    assert messages[0][:-1] == messages[1][:-1] == messages[2][:-1]
    results = [each[-1]["content"][0] for each in messages]
    assert {result["tool_use_id"] for result in results} == {"toolu_2"}
    assert len({result["content"] for result in results}) == 3
    assert one.body() == session.fork(1).body()


def test_sessions_share_no_prefix() -> None:
    one, other = (AgentSession.begin("m", seed, turn=4).body() for seed in (1, 2))
    assert common(one, other) < 0.01
