"""`return_token_ids` and log probabilities: what each API returns is what the worker received and
decoded, token for token, also where messages and processes are lost. Raw prompts."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas.conversation import Conversation, RawPrompt, Sampling
from schemas.events import BlockStart, Delta, Finish, FinishReason, Prepared, TokenLogprob
from schemas.token_ids import pack_ids, unpack_ids
from services.tokenization.detokenizer import FamilyVocabulary
from tests.kit.bus_turns import BusTurns, DecodedTurn
from tests.kit.counting import Plan
from tests.kit.local import Local, Running
from tests.kit.messages_client import TOOLS, Client, call, say
from tests.kit.stack import MODEL, Stack

CALL = "I look.\n</think>\n\n Looking \n\n" + call("ls", timeout_s="2.50") + "\n"
STOPS = "Hm.\n</think>\n\nOne stop here and more."
FUNCTIONS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": tool["name"], "parameters": tool["input_schema"]}}
    for tool in TOOLS
]


def logprobs_of(turn: Running) -> list[list[TokenLogprob]]:
    """The tokens of each block, as the client saw them."""
    blocks: list[list[TokenLogprob]] = [[] for _ in turn.sink.texts]
    for event in turn.sink.events:
        if isinstance(event, Delta):
            for token in event.logprobs or []:
                assert event.offset <= token.at < event.offset + len(event.text)
            blocks[event.block] += event.logprobs or []
    return blocks


def check_characters(turn: Running) -> None:
    """Each character belongs to exactly one token, the one that wrote it."""
    for text, tokens in zip(turn.sink.texts, logprobs_of(turn), strict=True):
        ends = [token.at for token in tokens[1:]] + [len(text)]
        assert tokens[0].at == 0
        for token, end in zip(tokens, ends, strict=True):
            assert text[token.at : end] in token.token
            assert token.logprob == -0.5


def check(turn: Running, end: Finish, prompt: list[int]) -> None:
    """The ids decode to the texts, count as the usage does, and come with their log
    probabilities."""
    sink, model = turn.sink, turn.local.model
    prepared = turn.task.result().prepared
    assert isinstance(prepared, Prepared)
    assert unpack_ids(prepared.prompt_ids) == prompt
    assert len(sink.ids) == len(sink.logprobs) == end.usage.output == end.tokens
    for at, token in enumerate(sink.logprobs):
        assert token is None or token.index == at
    assert sink.ids[-1] == model.eos
    decoder = FamilyVocabulary(model.vocabulary, model.setup.family).open()
    assert (
        decoder.feed(sink.ids[:-1]).replace("</think>", " ").split() == " ".join(sink.texts).split()
    )


@pytest.mark.parametrize("what", ["nothing", "parser", "frames", "events"])
async def test_ids_are_exact_whatever_is_lost(local: Local, what: str) -> None:
    await local.start(1, 2)
    plan = Plan(length=80, hold_at=40, go=asyncio.Event(), burst=3)
    turn = local.turn(plan, logprobs=0, return_token_ids=True)
    await turn.sink.words_at_least(30)
    parser = local.parser_of(turn)
    if what == "parser":
        await parser.kill()
    elif what == "frames":
        local.of("worker")[0].lose(f".tok.{parser.id}", 2)
    elif what == "events":
        parser.lose(".evt.", 2)
    plan.go.set()
    engine = local.of("worker")[0].engine
    check(turn, await turn.whole(80), list(engine.seen[0].token_ids))
    assert turn.sink.ids == [*local.model.output(engine.salt, 80), local.model.eos]
    assert [token and token.logprob for token in turn.sink.logprobs] == [-0.5] * 84 + [None]
    check_characters(turn)


async def test_a_turn_that_another_worker_resumes_has_all_ids(local: Local) -> None:
    await local.start(2, 1)
    plan = Plan(length=80, hold_at=40, go=asyncio.Event())
    turn = local.turn(plan, logprobs=0, return_token_ids=True)
    await turn.sink.words_at_least(30)
    first = local.worker_of(turn)
    await first.kill()
    plan.go.set()
    check(turn, await turn.whole(80, switches=1), list(first.engine.seen[0].token_ids))
    (second,) = local.of("worker")
    resumed = second.engine.seen[0].resumed
    one, other = (local.model.output(worker.engine.salt, 80) for worker in (first, second))
    assert turn.sink.ids == [*one[:resumed], *other[resumed:], local.model.eos]
    # Tokens that were decoded before the death and not shown yet have no log probability.
    places = [token.at for token in logprobs_of(turn)[-1]]
    assert places == sorted(set(places))
    assert len(places) > 60


def raw(local: Local, prompt: RawPrompt, **sampling: Any) -> Conversation:
    return Conversation(
        local.model.name, [], prompt=prompt, sampling=Sampling(max_tokens=50, **sampling)
    )


async def test_a_raw_prompt_reaches_the_engine_and_its_output_is_text(local: Local) -> None:
    await local.start()
    ids = [7, 0, 11]
    conversation = raw(local, RawPrompt(token_ids=pack_ids(ids)), logprobs=0)
    local.plans["raw1"] = Plan(length=10)
    turn = Running(local, local.of("frontend")[-1], "raw1", conversation)
    end = await turn.finished()
    assert isinstance(end, Finish)
    (worker,) = local.of("worker")
    assert list(worker.engine.seen[-1].token_ids) == ids
    assert [e.kind for e in turn.sink.events if isinstance(e, BlockStart)] == ["text"]
    spelled = b"".join(token.data for token in logprobs_of(turn)[0])
    assert spelled == turn.sink.texts[0].encode()
    assert turn.sink.texts[0].startswith(" "), "no blank is taken off"
    assert len(turn.sink.texts[0].split()) == 12
    assert end.usage.prompt == 3


@pytest.mark.parametrize("stays", [False, True])
async def test_a_stop_string_ends_the_turn_with_or_without_itself(
    local: Local, stays: bool
) -> None:
    await local.start()
    # The 21st word of the first worker, two of which are thought.
    _, word = local.model.words[7 * 20]
    turn = local.turn(Plan(length=60, pace_s=0.001), stop=[word], include_stop=stays, logprobs=0)
    end = await turn.finished()
    assert isinstance(end, Finish)
    assert (end.reason, end.stop_string) == (FinishReason.STOP_STRING, word)
    assert turn.sink.texts[-1].endswith(word) is stays
    check_characters(turn)


@pytest.fixture
async def bus(stack: Stack) -> AsyncIterator[BusTurns]:
    async with BusTurns(stack.nats.url) as turns:
        yield turns


async def both(
    client: Client, bus: BusTurns, path: str, request: dict[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]], DecodedTurn]:
    """The document and the stream's events of a request, and the worker's side of its turn."""
    request = {"model": MODEL, "return_token_ids": True, **request}
    _, document = await client.post(path, request)
    turn = await bus.ended(document["id"].replace("-", "_").partition("_")[2])
    async with client.http.post(client.url + path, json={**request, "stream": True}) as response:
        lines = (await response.text()).split("\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert turn.prompt
    return document, events, turn


@pytest.mark.parametrize("output", [CALL, STOPS])
async def test_chat_has_token_ids(client: Client, bus: BusTurns, output: str) -> None:
    messages = [{"role": "user", "content": say(output)}]
    request: dict[str, Any] = {"messages": messages, "tools": FUNCTIONS}
    request |= {"stop": [" here"], "logprobs": True, "top_logprobs": 2}
    document, chunks, turn = await both(client, bus, "/v1/chat/completions", request)
    (choice,) = document["choices"]
    assert document["prompt_token_ids"] == chunks[0]["prompt_token_ids"] == turn.prompt
    count = document["usage"]["completion_tokens"]
    assert choice["token_ids"] == [*turn.output, turn.stop_id][:count]
    content = choice["logprobs"]["content"]
    assert len(content) == count
    assert [entry for entry in content if entry["logprob"] >= 0] == []
    assert {len(entry["top_logprobs"]) for entry in content} == {2}
    ids, entries = [], []
    for chunk in chunks:
        for one in chunk["choices"]:
            ids += one.get("token_ids", [])
            entries += (one["logprobs"] or {"content": []})["content"]
    assert (ids, entries) == (choice["token_ids"], content)


async def test_completions_have_token_ids(client: Client, bus: BusTurns) -> None:
    request = {"prompt": [say("One two"), say("Three")], "max_tokens": 50, "n": 2, "logprobs": 1}
    request |= {"model": MODEL, "return_token_ids": True}
    _, document = await client.post("/v1/completions", request)
    for index, choice in enumerate(document["choices"]):
        turn = await bus.ended(f"{document['id'].partition('-')[2]}c{index}")
        assert choice["prompt_token_ids"] == turn.prompt
        assert choice["token_ids"] == [*turn.output, turn.stop_id]
        logprobs = choice["logprobs"]
        assert {len(logprobs[name]) for name in logprobs} == {len(choice["token_ids"])}
        assert "".join(logprobs["tokens"][:-1]) == choice["text"]
        assert logprobs["text_offset"][0] == 0


async def test_messages_have_token_ids(client: Client, bus: BusTurns) -> None:
    request = {"messages": [{"role": "user", "content": say(CALL)}], "tools": TOOLS}
    request |= {"max_tokens": 999, "logprobs": True}
    document, events, turn = await both(client, bus, "/v1/messages", request)
    assert document["prompt_token_ids"] == turn.prompt
    assert document["token_ids"] == [*turn.output, turn.stop_id]
    assert document["usage"]["output_tokens"] == len(document["token_ids"])
    assert len(document["token_logprobs"]) == len(document["token_ids"])
    assert [value for value in document["token_logprobs"] if value >= 0] == []
    assert events[0]["message"]["prompt_token_ids"] == turn.prompt
    (end,) = (event for event in events if event["type"] == "message_delta")
    assert end["token_ids"] == document["token_ids"]


async def test_responses_have_token_ids(client: Client, bus: BusTurns) -> None:
    tools = [{"type": "function", **tool["function"]} for tool in FUNCTIONS]
    request = {"input": say(CALL), "tools": tools, "include": ["message.output_text.logprobs"]}
    document, events, turn = await both(client, bus, "/v1/responses", request)
    assert document["prompt_token_ids"] == turn.prompt
    assert document["token_ids"] == [*turn.output, turn.stop_id]
    assert document["usage"]["output_tokens"] == len(document["token_ids"])
    assert len(document["token_logprobs"]) == len(document["token_ids"])
    (message,) = (item for item in document["output"] if item["type"] == "message")
    assert message["content"][0]["logprobs"]
    _, stored = await client.get(f"/v1/responses/{document['id']}")
    assert stored["token_ids"] == document["token_ids"]
    assert "token_ids" not in events[0]["response"]
    assert events[-1]["response"]["token_ids"] == document["token_ids"]
