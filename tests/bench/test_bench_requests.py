"""The requests: the same on every machine, and what one has in common with the next."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import pytest

from bench import fanout, prefixes
from bench.apis import APIS
from bench.prompts import KINDS, Kind, Size, make_body
from bench.sessions import AgentSession

API = APIS["messages"]


def common(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The share of `one` that both begin with."""
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    return same / len(one)


def bodies(size: Size, kind: Kind, seed: int = 0) -> list[bytes]:
    make = make_body(API, "m", size=size, kind=kind, play="text n=16", seed=seed)
    return [make(0), make(1)]


def parts(body: bytes) -> list[str]:
    request = json.loads(body)
    return [json.dumps(request[key]) for key in ("tools", "system", "messages")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", ["small", "large"])
def test_directive_ends_the_last_user_message(size: Size, kind: Kind) -> None:
    for body in bodies(size, kind):
        request: dict[str, Any] = json.loads(body)
        assert request["messages"][-1]["content"][-1]["text"].endswith("[[play text n=16]]")
        assert request["stream"] is True
        assert b"@@" not in body


def test_large_prompt_is_like_an_agents() -> None:
    request = json.loads(bodies("large", "tail")[0])
    assert request["system"][0]["text"].startswith("x-anthropic-billing-header: cc_version=")
    assert len(request["system"][2]["text"]) == 177_000
    assert len({tool["name"] for tool in request["tools"]}) == 20


def test_kinds_of_prompts_share_what_they_say() -> None:
    same, again = bodies("large", "same")
    assert same == again

    for one, other in (
        bodies("large", "tail"),
        [bodies("large", "tail")[0], bodies("large", "tail", seed=7)[0]],
    ):
        assert parts(one)[:2] == parts(other)[:2]
        assert parts(one)[2] != parts(other)[2]

    (tools, system, _), (other_tools, other_system, _) = map(parts, bodies("large", "head"))
    assert common(tools, other_tools) * len(tools) < 100
    assert tools[200:] == other_tools[200:]
    assert system != other_system

    (_, system, _), (_, other_system, _) = map(parts, bodies("large", "fresh"))
    words, other_words = set(system.split(". ")), set(other_system.split(". "))
    assert len(words & other_words) < len(words) / 20


def test_requests_are_the_same_bytes_on_every_machine() -> None:
    every = b"".join(b"".join(bodies("large", kind)) for kind in KINDS)
    digest = "cd63bffdfdb2f7a8326517b0143671a7d47715ee95bd9385d616e4dad2fb3965"
    assert hashlib.sha256(every).hexdigest() == digest


def answer(call: str) -> list[tuple[int, bytes]]:
    """The events of a turn of the script."""
    text = {"type": "text", "text": ""}
    tool_use = {"type": "tool_use", "id": call, "name": "read_file", "input": {}}
    blocks = [
        (text, {"type": "text_delta", "text": "On to it."}),
        (tool_use, {"type": "input_json_delta", "partial_json": '{"path": "main.py"}'}),
    ]
    events: list[dict[str, Any]] = []
    for index, (block, delta) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    return [(at, b"data: " + json.dumps(event).encode()) for at, event in enumerate(events)]


def test_session_returns_what_it_received_and_grows_at_its_end() -> None:
    session = AgentSession.begin("m", 1, turn=3)
    first = session.body()
    session.take(answer("toolu_1"))
    second = session.body()
    assert second.startswith(first[:-2])
    _, said, returned = json.loads(second)["messages"]
    call = {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "read_file",
        "input": {"path": "main.py"},
    }
    assert said == {"role": "assistant", "content": [{"type": "text", "text": "On to it."}, call]}
    (result,) = returned["content"]
    assert result["tool_use_id"] == "toolu_1"
    assert result["content"].endswith("[[play agent delay=0]]")
    with pytest.raises(ValueError, match="without a call"):
        session.take(answer("toolu_2")[:3])
    assert common(first, AgentSession.begin("m", 2, turn=3).body()) < 0.01


@pytest.mark.parametrize("turn", [5, 50])
def test_session_has_its_size_at_its_turn(turn: int) -> None:
    session = AgentSession.begin("m", 1, turn)
    for number in range(turn - 1):
        session.take(answer(f"toolu_{number}"))
    before = len(session.body())
    assert 235_000 < before < 265_000
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


VARIANTS = prefixes.variants("m", 2000, 7)


def in_order(body: prefixes.Body) -> str:
    return json.dumps([body["system"], body["messages"]])


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("header stable", 0.9),
        ("header varying", 0.0),
        ("thinking kept", 0.95),
        ("thinking mutated", 0.7),
    ],
)
def test_requests_of_a_variant_share_a_prefix(name: str, share: float) -> None:
    one, other = in_order(VARIANTS[name](1)), in_order(VARIANTS[name](2))
    assert one != other
    assert share <= common(one, other) < share + 0.1
    others = [in_order(variant(1)) for key, variant in VARIANTS.items() if key != name]
    assert all(common(one, variant) < 0.05 for variant in others)


def test_mutated_thought_differs_from_its_first_words_on() -> None:
    one, other = (VARIANTS["thinking mutated"](number) for number in (1, 2))
    assert one["system"] == other["system"]
    assert one["messages"][0] == other["messages"][0]
    (thought, *rest), (other_thought, *other_rest) = (
        body["messages"][1]["content"] for body in (one, other)
    )
    assert common(thought["thinking"], other_thought["thinking"]) < 0.01
    assert len(thought["thinking"]) > prefixes.THINKING_TOKENS * 4
    assert rest == other_rest


def test_siblings_share_a_system_prompt_and_strangers_nothing() -> None:
    alike = fanout.texts(8, shared=2000, tail=50, seed="a")
    assert len({system for system, _ in alike}) == 1
    assert len({question for _, question in alike}) == 8
    assert len(alike[0][0]) == pytest.approx(2000 * prefixes.CHARS_PER_TOKEN, rel=0.01)
    apart = fanout.texts(8, shared=0, tail=50, seed="a")
    assert len({system[:10] for system, _ in apart}) == 8
