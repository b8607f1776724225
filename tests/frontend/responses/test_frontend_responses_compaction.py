"""Tests compaction in `/v1/responses`: by its own route, by a trigger, by a threshold; and sealed
content of other keys."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.control import ModelCard
from schemas.conversation import Conversation, Reasoning
from schemas.errors import Overloaded
from services.frontend.http.bodies import PARSE_IN_THREAD_FROM_BYTES
from services.runtime.storage.seal import Sealer
from tests.frontend.responses.responses_client import ANSWER, Client, agent, keyed, said, types
from tests.kit.bodies import MODEL, assistant, function_output, message, user
from tests.kit.events import Step, finish, reasoning, text
from tests.kit.frontend import FakeGateway, serving

COMPACTION = {"type": "compaction", "compact_threshold": 4000}
MANAGED: dict[str, Any] = {"context_management": [COMPACTION]}


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway(agent)


async def compact(client: Client, **body: Any) -> Any:
    """The document of the route."""
    return await client.ask("POST", "/compact", json={"model": MODEL, "input": "hi"} | body)


async def test_compacted_conversation_replaces_the_whole(
    gateway: FakeGateway, client: Client
) -> None:
    summary = text(1, "They said one, then two.")
    gateway.steps = lambda: [[*reasoning(0, "Sum up."), *summary, finish(2)]]
    compacted = await compact(client, input=[user("one"), assistant("Yes?"), user("two")])
    assert compacted["object"] == "response.compaction"
    first, second, blob = compacted["output"]
    assert types(compacted["output"]) == ["message", "message", "compaction"]
    assert [item["content"][0]["text"] for item in (first, second)] == ["one", "two"]
    assert "one, then two" not in blob["encrypted_content"]
    assert compacted["usage"]["total_tokens"] == 730
    asked = gateway.conversations[-1]
    assert said(asked)[:3] == [("user", ["one"]), ("assistant", ["Yes?"]), ("user", ["two"])]
    assert asked.tool_choice.mode == "none"
    await client.create(input=[*compacted["output"], user("three")])
    replayed = said(gateway.conversations[-1])
    assert [role for role, _ in replayed] == ["user"] * 4
    assert "They said one, then two." in replayed[2][1][0]


async def test_compaction_trigger_makes_one_item_and_ends_the_chain(
    gateway: FakeGateway, client: Client
) -> None:
    first = await client.create(input="one")
    gateway.steps = lambda: [[*text(0, "All of it."), finish(1)]]
    trigger = [{"type": "compaction_trigger"}]
    events = await client.stream(previous_response_id=first["id"], input=trigger)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    made = events[-1]["response"]
    assert types(done) == types(made["output"]) == ["compaction"]
    await client.ask("DELETE", f"/{first['id']}")
    await client.create(previous_response_id=made["id"], input="go on")
    summary, going_on = said(gateway.conversations[-1])
    assert "All of it." in summary[1][0]
    assert going_on == ("user", ["go on"])


@pytest.mark.parametrize("stream", [False, True])
async def test_context_over_its_threshold_is_compacted_before_the_answer(
    gateway: FakeGateway, client: Client, stream: bool
) -> None:
    rules = message("developer", "rules")
    first = await client.create(input=[rules, user("one")])
    summary: list[Step] = [[*text(0, "They said one."), finish(1)]]
    turns: Iterator[list[Step]] = iter([summary, agent(), agent()])
    gateway.steps = lambda: next(turns)
    body = {"previous_response_id": first["id"], "input": "two", **MANAGED}
    if stream:
        events = await client.stream(**body)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        added = [event for event in events if event["type"] == "response.output_item.added"]
        assert [event["output_index"] for event in added] == [0, 1, 2, 3]
        assert types([event["item"] for event in added]) == ["compaction", *ANSWER]
        made = events[-1]["response"]
    else:
        made = await client.create(**body)
    assert types(made["output"]) == ["compaction", *ANSWER]
    assert len({item["id"] for item in made["output"]}) == 4
    assert made["usage"]["total_tokens"] == 2 * 730
    summarizing, answering = (turn.conversation for turn in gateway.turns[-2:])
    roles = [role for role, _ in said(summarizing)]
    assert roles == ["developer", "user", "assistant", "user", "user"]
    assert [role for role, _ in said(answering)] == ["developer", "user", "user"]
    assert "They said one." in said(answering)[1][1][0]
    assert said(answering)[2] == ("user", ["two"])
    # The chain continues from the summary, and so may the client.
    output = function_output()
    await client.ask("DELETE", f"/{first['id']}")
    await client.create(previous_response_id=made["id"], input=[output])
    chained = gateway.conversations[-1]
    assert [role for role, _ in said(chained)] == ["developer", "user", "user", "assistant", "tool"]
    assert chained.messages[:3] == answering.messages


async def test_context_below_its_threshold_is_unchanged(
    gateway: FakeGateway, client: Client
) -> None:
    below = {"type": "compaction", "compact_threshold": 4322}
    assert types((await client.create(context_management=[below]))["output"]) == ANSWER
    assert len(gateway.turns) == 1


async def test_context_that_cannot_be_compacted_is_an_error(
    gateway: FakeGateway, client: Client
) -> None:
    gateway.steps = lambda: [[*reasoning(0, "Nothing."), finish(1)]]
    await client.refuse(status=500, **MANAGED)
    gateway.refusal = Overloaded("busy")
    await client.refuse(status=503, stream=True, **MANAGED)


@pytest.mark.parametrize("with_key", [False, True])
async def test_blob_of_another_tenant_is_refused(tmp_path: Path, with_key: bool) -> None:
    key = tmp_path / "seal"
    key.write_text("s" * 32)
    options = {"seal_key_file": str(key)} if with_key else {}
    async with serving(config=keyed(tmp_path, "red", "blue", **options)) as served:
        red, blue = (Client(served, name) for name in ("red", "blue"))
        blob = (await compact(red))["output"][-1]
        error = await blue.refuse(input=[blob, user("hi")])
        assert error["code"] == "invalid_encrypted_content"
        await red.create(input=[blob, user("hi")])


async def test_models_have_different_keys_without_a_key_file() -> None:
    async with serving(FakeGateway(cards=[ModelCard("m1"), ModelCard("m2")])) as served:
        client = Client(served)
        output = (await compact(client, model="m1"))["output"]
        await client.create(model="m1", input=output)
        error = await client.refuse(model="m2", input=output)
        assert error["code"] == "invalid_encrypted_content"


async def test_sealed_content_is_opened_whichever_version_has_the_session() -> None:
    """Models with one alias: all sessions are on one of them, and without a session another one is
    chosen."""
    cards = {name: ModelCard(name, aliases=["coder"]) for name in ("v1", "v2")}

    def resolve(_model: str, conversation: Conversation | None) -> ModelCard:
        return cards["v1" if conversation else "v2"]

    gateway = FakeGateway(cards=list(cards.values()), on_resolve=resolve)
    seal = Sealer.load(None, "v1").of(None).seal("What I thought.", "turn")
    summary = [{"type": "summary_text", "text": "A thought."}]
    thought = {"type": "reasoning", "encrypted_content": seal, "summary": summary}
    async with serving(gateway) as served:
        client = Client(served)
        await client.create(model="coder", input=[thought, user("hi")])
        (part,) = gateway.conversations[-1].messages[0].parts
        assert isinstance(part, Reasoning)
        assert part.text == "What I thought."
        compacted = (await compact(client, model="coder"))["output"]
        managed = (await client.create(model="coder", **MANAGED))["output"]
        for output in (compacted, managed):
            await client.create(model="coder", input=output)


async def test_model_of_a_large_request_with_a_seal_is_looked_up_on_the_event_loop() -> None:
    """Large requests are read in a thread; the catalogue changes on the loop."""
    threads: set[threading.Thread] = set()

    def resolve(_model: str, _: Conversation | None) -> ModelCard:
        threads.add(threading.current_thread())
        return ModelCard(MODEL)

    seal = Sealer.load(None, MODEL).of(None).seal("What I thought.", "turn")
    summary = [{"type": "summary_text", "text": "A thought."}]
    thought = {"type": "reasoning", "encrypted_content": seal, "summary": summary}
    gateway = FakeGateway(on_resolve=resolve)
    async with serving(gateway) as served:
        await Client(served).create(input=[thought, user("x" * PARSE_IN_THREAD_FROM_BYTES)])
    (part,) = gateway.conversations[-1].messages[0].parts
    assert isinstance(part, Reasoning)
    assert part.text == "What I thought."
    assert threads == {threading.current_thread()}
