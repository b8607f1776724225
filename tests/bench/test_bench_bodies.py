"""Bodies of agents: their form, and what one has in common with the next."""

import json
from pathlib import Path
from typing import Any

from bench.apis import APIS
from bench.codex import codex_body
from bench.recorded import recorded_bodies
from bench.sessions import long_body, session_body

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
    assert {item["type"] for item in body["input"]} == {"message", "function_call", "function_call_output"}


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


def test_a_session_grows_at_its_end() -> None:
    make = session_body("m", PLAY, seed=1)
    longer, shorter = make(21), make(20)
    messages = json.loads(longer)["messages"]
    assert json.loads(shorter)["messages"][:-1] == messages[: len(json.loads(shorter)["messages"]) - 1]
    assert [message["role"] for message in messages[:4]] == ["user", "assistant", "user", "assistant"]
    assert len(messages) == 21 * 4 + 1


def test_long_prompts_have_the_length_that_is_asked_for() -> None:
    tail, head = (long_body(APIS["chat"], "m", 4000, PLAY, head=head, seed=1) for head in (False, True))
    assert 4000 * 4 < len(tail(0)) < 4000 * 5
    assert common(tail(0), tail(1)) > 0.9
    assert common(head(0), head(1)) < 0.1
