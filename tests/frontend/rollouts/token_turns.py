"""A pipeline in memory that reports tokens to those who ask for them, as the real one does."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
from msgspec.structs import replace
from typing_extensions import override

from schemas.conversation import Call, Conversation, Part, Reasoning, Sampling, Text
from schemas.events import (
    BlockKind,
    BlockStart,
    BlockStop,
    Delta,
    Dispatch,
    Finish,
    FinishReason,
    LastEvent,
    OutputTokens,
    Prepared,
    TokenLogprob,
    TurnEvent,
    Usage,
    WeightsSpan,
)
from schemas.token_ids import pack_ids
from services.runtime.config.frontend import FrontendConfig
from tests.kit.bodies import MODEL, Json
from tests.kit.events import Step
from tests.kit.frontend import CARD, FakeGateway, FakeTurn, Reply, Served, serving
from tests.kit.rollouts import MemoryRollouts

END, USER, ANSWER, MARKUP = 2, 5, 9, 3
"""The ids between texts: the end of a turn, the beginning of a message and of an answer, and what
separates two blocks."""


class Block(NamedTuple):
    """A block that the model writes, one token a word."""

    kind: BlockKind
    text: str
    name: str | None = None
    call_id: str | None = None


def text_ids(text: str) -> list[int]:
    """The tokens of a text."""
    return [100 + crc32(word.encode()) % 50_000 for word in text.split()]


def _parts_ids(parts: Sequence[Part]) -> Iterator[int]:
    for part in parts:
        if isinstance(part, Text):
            yield from text_ids(part.text)
        elif isinstance(part, Call):
            yield from (MARKUP, *text_ids(part.arguments))
        elif isinstance(part, Reasoning):
            yield from (*text_ids(part.text or ""), MARKUP)


def prompt_of(conversation: Conversation) -> list[int]:
    """The prompt: what the model wrote comes back with the same ids."""
    ids: list[int] = []
    for message in conversation.messages:
        begin = ANSWER if message.role == "assistant" else USER
        ids += [begin, *_parts_ids(message.parts), END]
    return [*ids, ANSWER]


class _Token(NamedTuple):
    id: int
    block: int
    """-1: of no block."""
    text: str
    at: int


def _tokens(blocks: Sequence[Block]) -> list[_Token]:
    tokens = []
    for number, block in enumerate(blocks):
        if number:
            tokens.append(_Token(MARKUP, -1, "", 0))
        at = 0
        for index, word in enumerate(block.text.split()):
            text = word if index == 0 else f" {word}"
            tokens.append(_Token(text_ids(word)[0], number, text, at))
            at += len(text)
    return [*tokens, _Token(END, -1, "", 0)]


def logprob_of(index: int) -> float:
    """The log probability of an output token; a float32 has it exactly."""
    return -0.25 * (index % 8) - 0.125


def decoded(
    blocks: Sequence[Block], sampling: Sampling, weights: Sequence[WeightsSpan] = ()
) -> list[list[TurnEvent]]:
    """The events of a turn, with what its sampling asks for. Each step is one token."""
    tokens = _tokens(blocks)
    cut = tokens if sampling.max_tokens is None else tokens[: sampling.max_tokens]
    steps: list[list[TurnEvent]] = []
    started = -1
    for index, token in enumerate(cut):
        step: list[TurnEvent] = []
        logprob = None
        if sampling.logprobs is not None:
            logprob = TokenLogprob(token.text, logprob_of(index), token.at, index=index)
        if sampling.return_token_ids:
            spans = [span for span in weights if span.at == index]
            step.append(OutputTokens(index, [token.id], [logprob] if logprob else None, spans))
        if token.block >= 0:
            if token.block != started:
                step += _stop(blocks, started)
                started = token.block
                block = blocks[started]
                step.append(BlockStart(started, block.kind, block.name, block.call_id))
            delta = Delta(token.block, token.at, token.text, [logprob] if logprob else None)
            step.append(delta)
        steps.append(step)
    is_whole = cut == tokens
    reason = FinishReason.STOP if is_whole else FinishReason.LENGTH
    last = [*_stop(blocks, started)]
    count = len(cut) if sampling.return_token_ids else 0
    stop_id = END if is_whole and sampling.return_token_ids else None
    usage = Usage(prompt=10, output=len(cut))
    end = Finish(reason, started + 1, usage, tokens=count, stop_id=stop_id)
    return [step for step in [*steps, [*last, end]] if step]


def _stop(blocks: Sequence[Block], number: int) -> Iterator[TurnEvent]:
    if number < 0:
        return
    block = blocks[number]
    if block.call_id and block.name:
        yield Dispatch(number, block.call_id, block.name, block.text)
    seal = "c2VhbA" if block.kind == "reasoning" else None
    yield BlockStop(number, length=len(block.text), seal=seal)


HELLO = [Block("text", "Hello there my friend")]
AGENT = [
    Block("reasoning", "I think of it"),
    Block("text", "I look now"),
    Block("tool_use", '{"a": "b"}', "look", "toolu_" + "A" * 24),
]


class TokenGateway(FakeGateway):
    """`answers`: what each turn writes; the last one again and again. A turn waits for `pause`
    after its first token."""

    def __init__(self, *answers: list[Block], **options: Any) -> None:
        card = replace(CARD, features=["logprobs"])
        super().__init__(cards=[card], **options)
        self.answers = [*(answers or [HELLO])]
        self.weights: list[WeightsSpan] = []
        self.pause: asyncio.Event | None = None
        self.end: LastEvent | None = None
        """Ends each turn at once."""

    def set_version(self, version: int) -> None:
        """Of the weights, from now on."""
        self.cards = [replace(self.cards[0], weights_version=version)]
        self.weights = [WeightsSpan(0, version)]

    @override
    def steps_of(self, turn: FakeTurn) -> list[Step]:
        sampling = turn.conversation.sampling
        ids = b""
        if sampling.return_token_ids:
            ids = pack_ids(prompt_of(turn.conversation))
        turn.prepared = Prepared(
            prompt_tokens=10, max_tokens=sampling.max_tokens or 1024, prompt_ids=ids
        )
        turn.sink.opened(turn.prepared)
        if self.end is not None:
            return [[self.end]]
        blocks = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        steps: list[Step] = [*decoded(blocks, sampling, self.weights)]
        if self.pause is not None:
            steps.insert(1, self.pause)
        return steps


class Agent:
    """An agent of a rollout, and its trainer."""

    def __init__(self, served: Served, document: Json, **headers: str) -> None:
        self.served = served
        self.document = document
        self.id: str = document["id"]
        self.headers = headers
        self.messages: list[Json] = []

    async def ask(self, text: str = "Hi.", **fields: Any) -> Reply:
        """One more turn of its conversation, by Messages."""
        self.messages.append({"role": "user", "content": text})
        body = {"model": MODEL, "max_tokens": 4096, "messages": self.messages, **fields}
        reply = await self.served.post(f"/rollouts/{self.id}/v1/messages", body)
        if reply.status == 200 and "stream" not in fields:
            self.messages.append({"role": "assistant", "content": reply.json["content"]})
        else:
            del self.messages[-1]
        return reply

    async def call(self, method: str, path: str = "", body: Any = None) -> Reply:
        """A request of the trainer."""
        path = f"/rollouts/{self.id}{path}"
        return await self.served.send(method, path, json=body, headers=self.headers)

    async def state(self) -> Json:
        """The rollout's document."""
        reply = await self.call("GET")
        assert reply.status == 200, reply.text
        document: Json = reply.json
        return document

    async def lines(self) -> list[Json]:
        """Its samples, and the last line."""
        reply = await self.call("GET", "/samples")
        assert reply.status == 200, reply.text
        return [msgspec.json.decode(line) for line in reply.body.splitlines()]

    async def samples(self) -> list[Json]:
        """Its samples."""
        return (await self.lines())[:-1]

    async def missing(self) -> list[str]:
        """Why turns of it are missing."""
        return [turn["why"] for turn in (await self.lines())[-1]["missing"]]


async def rollout(served: Served, key: str | None = None, **fields: Any) -> Agent:
    """A new rollout."""
    headers = {"x-api-key": key} if key else {}
    reply = await served.post("/rollouts", fields, headers=headers)
    assert reply.status == 200, reply.text
    return Agent(served, reply.json, **headers)


@asynccontextmanager
async def serving_two(gateway: FakeGateway) -> AsyncIterator[tuple[Served, Served, Any]]:
    """Two frontends with one store."""
    one = MemoryRollouts(id="frontend-1")
    two = MemoryRollouts(one.memory, id="frontend-2")
    async with (
        serving(gateway, FrontendConfig(), rollouts=one) as first,
        serving(gateway, FrontendConfig(), rollouts=two) as second,
    ):
        one.peers.append(second.rollouts)
        two.peers.append(first.rollouts)
        yield first, second, (one, two)
