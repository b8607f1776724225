"""Rollouts over the real bus: samples are what workers received and decoded, token for token,
whichever process dies."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from services.images.image_data import image_hash
from tests.kit.messages_client import Answer, Client, body, call, say
from tests.kit.stack import MODEL, Stack, busy
from tests.kit.vision_model import png
from tests.kit.waiting import LIMIT_S
from tests.pipeline.tap import SAMPLE, Tap
from tests.pipeline.test_pipeline_images import block, text
from tests.pipeline.test_pipeline_replays import REPLAYS, session
from turnwire_tools.clients.answer import APIS, Api

THOUGHT = "Hm.\n</think>\n\n"
LOOK = THOUGHT + "I look.\n\n" + call("ls", timeout_s="2.50") + "\n"
LONG = THOUGHT + "Before.\n\n[[delay 15]]" + call("ls") + "\n\n[[fill 120]]" + call("date")

Record: TypeAlias = Callable[[Stack], Tap]


class Trainer:
    """A rollout's trainer and its agent, which talks by Messages."""

    def __init__(self, client: Client, document: dict[str, Any]) -> None:
        self.id: str = document["id"]
        self.url = client.url
        self.http = client.http
        self.agent = Client(f"{client.url}/rollouts/{self.id}")
        self.messages: list[dict[str, Any]] = []

    async def ask(self, *content: Any) -> Answer:
        """One more turn."""
        self.messages.append({"role": "user", "content": [*content]})
        answer = await self.agent.stream(self.request)
        self.messages.append(answer.message)
        return answer

    @property
    def request(self) -> dict[str, Any]:
        return {**body(""), "messages": self.messages}

    async def begin(self, script: str) -> asyncio.Task[Answer]:
        """Starts a long turn; returns after its first call."""
        request = body(script)
        return await self.agent.begin(request, "content_block_stop", 3)

    async def post(self, path: str, status: int = 200) -> dict[str, Any]:
        async with self.http.post(f"{self.url}/rollouts/{self.id}{path}") as response:
            assert response.status == status, await response.text()
            document: dict[str, Any] = await response.json()
            return document

    async def lines(self) -> list[str]:
        """Its samples, and the last line, as text."""
        async with self.http.get(f"{self.url}/rollouts/{self.id}/samples") as response:
            assert response.status == 200, await response.text()
            return (await response.text()).splitlines()

    async def samples(self) -> list[SAMPLE]:
        return [json.loads(line) for line in (await self.lines())[:-1]]

    async def last_line(self) -> dict[str, Any]:
        last: dict[str, Any] = json.loads((await self.lines())[-1])
        return last

    async def missing(self) -> list[dict[str, str]]:
        """The turns that are in no sample."""
        missing: list[dict[str, str]] = (await self.last_line())["missing"]
        return missing

    async def close(self) -> None:
        await self.agent.http.close()


async def make(client: Client, **fields: Any) -> Trainer:
    status, document = await client.post("/rollouts", fields)
    assert status == 200, document
    return Trainer(client, document)


@pytest.fixture
async def trainer(client: Client) -> AsyncIterator[Trainer]:
    trainer = await make(client, group="g", metadata={"task": 7})
    yield trainer
    await trainer.close()


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    """Records the bus of a stack, until the test ends."""
    taps: list[Tap] = []

    def start(stack: Stack) -> Tap:
        taps.append(Tap(stack.nats.url, tmp_path))
        return taps[-1]

    yield start
    for tap in taps:
        tap.stop()


def result_of(answer: Answer, content: Any = "seen") -> dict[str, Any]:
    """The result of an answer's last call."""
    return {"type": "tool_result", "tool_use_id": answer.blocks[-1]["id"], "content": content}


async def checked(trainer: Trainer, tap: Tap, *missing: str) -> list[SAMPLE]:
    """The samples, after the independent check."""
    lines = "\n".join((await trainer.lines())[:-1])
    return await asyncio.to_thread(tap.check, lines, *missing)


async def test_agents_session_is_one_sample(stack: Stack, trainer: Trainer, record: Record) -> None:
    """With a call whose numbers clients spell differently, and by other APIs at the same time."""
    tap = record(stack)
    first = await trainer.ask(text(say(LOOK, LOOK, THOUGHT + "Done.")))
    second = await trainer.ask(result_of(first))
    await trainer.ask(result_of(second))
    chat = {"model": "x", "messages": [{"role": "user", "content": say(THOUGHT + "Hello.")}]}
    prompt = {"model": "x", "prompt": say("One two"), "max_tokens": 20}
    response = {"model": "x", "input": say(THOUGHT + "Hi."), "store": False}
    for path, request in (
        ("/v1/chat/completions", {**chat, "n": 2}),
        ("/v1/completions", prompt),
        ("/v1/responses", response),
    ):
        status, document = await trainer.agent.post(path, request)
        assert status == 200, document
    samples = await checked(trainer, tap)
    assert sorted(len(sample["turns"]) for sample in samples) == [1, 1, 1, 1, 3]
    main = samples[0]
    last = await trainer.last_line()
    assert (main["group"], last["metadata"], last["missing"]) == ("g", {"task": 7}, [])
    kinds = [block["kind"] for block in main["turns"][0]["blocks"]]
    assert kinds == ["reasoning", "text", "tool_use"]
    assert not [1 for sample in samples if sample.get("departs") and sample is main]


OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTION = {"type": "function", "function": {"name": "run_shell", "parameters": OBJECT}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": OBJECT}}
UNUSUAL: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"stop": ["here"]}),
    ("/v1/chat/completions", {"stop": ["here"], "include_stop_str_in_output": True}),
    ("/v1/chat/completions", {"max_tokens": 3}),
    ("/v1/chat/completions", {"max_tokens": 1}),
    ("/v1/chat/completions", {"n": 3, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {"response_format": FORMAT}),
    ("/v1/chat/completions", {"tools": [FUNCTION], "tool_choice": "required"}),
    ("/v1/chat/completions", {"tools": [FUNCTION], "parallel_tool_calls": False}),
    ("/v1/chat/completions", {"reasoning_effort": "none"}),
    ("/v1/messages", {"max_tokens": 2000, "thinking": {"type": "disabled"}}),
    ("/v1/messages", {"max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}}),
    ("/v1/messages", {"max_tokens": 2000, "stop_sequences": ["here"]}),
    ("/v1/responses", {"max_output_tokens": 16, "store": False}),
    ("/v1/completions", {"prompt": [7, 8, 9], "max_tokens": 5}),
    ("/v1/completions", {"prompt": ["One", "Two"], "echo": True, "max_tokens": 5}),
]


OWN = {"id", "call_id", "created", "created_at", "completed_at", "signature", "encrypted_content"}
"""What differs in every two answers."""
CACHED = {"cache_creation_input_tokens", "cache_read_input_tokens", "input_tokens"}


def comparable(document: Any) -> Any:
    """A document without what always differs, or depends on the engine's cache."""
    if isinstance(document, list):
        return [comparable(one) for one in document]
    if not isinstance(document, dict):
        return document
    names = document.keys() - OWN - CACHED - {"prompt_tokens_details", "input_tokens_details"}
    return {name: comparable(document[name]) for name in names}


async def test_unusual_requests_are_recorded(
    stack: Stack, client: Client, trainer: Trainer, record: Record
) -> None:
    """Each answer is what it is without a rollout."""
    documents = []
    tap = record(stack)
    for number, (path, fields) in enumerate(UNUSUAL):
        words = f"{number} " + say(THOUGHT + "It is here and there. " + call("ls") + call("cd"))
        request = {"model": MODEL, "messages": [{"role": "user", "content": words}], **fields}
        if path == "/v1/responses":
            request["input"] = request.pop("messages")
        elif path == "/v1/completions":
            del request["messages"]
        status, document = await trainer.agent.post(path, request)
        assert status == 200, (fields, document)
        documents.append((path, request, document))
    samples = await checked(trainer, tap)
    assert sum(len(sample["turns"]) for sample in samples) == len(UNUSUAL) + 3
    assert await trainer.missing() == []
    for path, request, document in documents:
        _, plain = await client.post(path, request)
        assert comparable(document) == comparable(plain), request


@pytest.mark.parametrize("api", APIS)
async def test_each_recorded_session_is_one_sample(
    stack: Stack, client: Client, record: Record, api: Api
) -> None:
    tap = record(stack)
    lines: list[str] = []
    for replay in REPLAYS:
        trainer = await make(client)
        agent = session(replay, api, client.http, trainer.agent.url)
        for turn in replay.turns:
            await agent.turn(turn)
        *made, last = await trainer.lines()
        turns = [len(json.loads(line)["turns"]) for line in made]
        failed = [turn["why"] for turn in json.loads(last)["missing"]]
        assert len(turns) <= 1, replay.name
        assert sum(turns) + len(failed) == len(replay.turns), replay.name
        assert {*failed} <= {"failed"}, replay.name
        lines += made
        await trainer.close()
    await asyncio.to_thread(tap.check, "\n".join(lines))


async def test_abort_stops_the_worker(stack: Stack, trainer: Trainer) -> None:
    await trainer.ask(text(say(THOUGHT + "Yes.")))
    turn = await trainer.begin(say(LONG))
    aborted = await trainer.post("/abort")
    assert (aborted["status"], aborted["open_turns"]) == ("aborted", 0)
    answer = await asyncio.wait_for(turn, LIMIT_S)
    assert answer.error is not None
    assert "aborted" in answer.error["message"]
    assert len(await trainer.samples()) == 1
    assert [turn["why"] for turn in await trainer.missing()] == ["aborted"]


async def test_follower_gets_each_turn(stack: Stack, trainer: Trainer) -> None:
    lines: list[dict[str, Any]] = []

    async def follow() -> None:
        url = f"{trainer.url}/rollouts/{trainer.id}/samples?follow=true"
        async with trainer.http.get(url) as response:
            async for line in response.content:
                lines.append(json.loads(line))

    first = await trainer.ask(text(say(LOOK, THOUGHT + "Done.")))
    following = asyncio.create_task(follow())
    async with asyncio.timeout(LIMIT_S):
        while not lines:
            await asyncio.sleep(0.01)
    await trainer.ask(result_of(first))
    await trainer.post("/finish")
    await asyncio.wait_for(following, LIMIT_S)
    (sample,) = await trainer.samples()
    last = lines.pop()
    assert (last["rollout"], last["status"]) == (trainer.id, "finished")
    ids = [token for line in lines for token in line["ids"]]
    assert ids == sample["ids"]
    assert [turn for line in lines for turn in line["turns"]] == sample["turns"]


@pytest.mark.parametrize("vision_dir", ["qwen"], indirect=True)
async def test_images_are_in_samples(image_stack: Stack, record: Record) -> None:
    client = Client(image_stack.url)
    trainer = await make(client)
    tap = record(image_stack)
    data = [png(300, 200, 0), png(64, 64, 1)]
    first = await trainer.ask(text(say(LOOK, THOUGHT + "Done.")), block(data[0]))
    await trainer.ask(result_of(first, [text("shot"), block(data[1])]))
    (sample,) = await checked(trainer, tap)
    assert [image["hash"] for image in sample["images"]] == [image_hash(one, None) for one in data]
    for image, one in zip(sample["images"], data, strict=True):
        assert not any(sample["loss_mask"][image["at"] : image["at"] + image["tokens"]])
        async with client.http.get(image["url"]) as response:
            assert (response.status, await response.read()) == (200, one)
    async with client.http.get(f"{client.url}/rollouts/{trainer.id}/images/{'0' * 32}") as answer:
        assert answer.status == 404
    await trainer.close()
    await client.http.close()


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["worker", "parser"])
async def test_turn_survives_its_process(
    own_stack: Stack, own_client: Client, record: Record, stage: str
) -> None:
    """Each token is in the sample once; those of the dead worker may have no log probability."""
    trainer = await make(own_client)
    tap = record(own_stack)
    turns = [await trainer.begin(say(LONG)) for _ in range(4)]
    name = await busy(own_stack, stage)
    next(child for child in own_stack.children if child.name == name).kill()
    answers = [await asyncio.wait_for(turn, LIMIT_S) for turn in turns]
    assert [answer.error for answer in answers] == [None] * 4
    samples = await checked(trainer, tap)
    assert sum(len(sample["turns"]) for sample in samples) == 4
    assert await trainer.missing() == []
    await trainer.close()


@pytest.mark.slow
async def test_turn_of_a_dead_frontend_is_lost(
    own_stack: Stack, own_client: Client, record: Record
) -> None:
    second = own_stack.start("frontend")
    there = Client(second.url)
    await there.ready()
    trainer = await make(own_client)
    elsewhere = Trainer(there, {"id": trainer.id})
    tap = record(own_stack)
    first = await elsewhere.ask(text(say(LOOK, THOUGHT + "Done.")))
    turn = await elsewhere.begin(say(LONG))
    (lost,) = await trainer.missing()
    assert lost["why"] == "running"
    second.kill()
    await asyncio.wait([turn])
    trainer.messages = elsewhere.messages
    await trainer.ask(result_of(first))
    async with asyncio.timeout(LIMIT_S):
        while lost["why"] == "running":
            await asyncio.sleep(0.1)
            (lost,) = await trainer.missing()
    assert lost["why"] == "lost"
    finished = await trainer.post("/finish")
    assert (finished["turns"], finished["open_turns"], len(finished["missing"])) == (2, 0, 1)
    (sample,) = await checked(trainer, tap, lost["turn"])
    assert len(sample["turns"]) == 2
    for one in (trainer, elsewhere):
        await one.close()
    await there.http.close()
