"""Turns with a budget of reasoning tokens, between an engine that plays tokens and the real
parser."""

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec

from schemas.conversation import Sampling, ToolSpec
from schemas.events import Finish, FinishReason
from schemas.frames import TokenFinish
from schemas.requests import GenerateRequest, ParseContext, ThoughtBudget, ThoughtSpelling
from schemas.token_ids import pack_ids
from services.families import Family, families, find_family
from services.parser.turn_parse import TurnParse
from services.parser.turn_stream import TurnStream
from services.preprocessor.model.thought_spelling import thought_spelling
from services.runtime.storage.seal import Sealer
from services.tokenization.detokenizer import FamilyVocabulary, Vocabulary
from services.tokenization.prompt_tokenizer import PromptTokenizer
from services.worker.engine import EngineDelta, EngineInfo, EngineRequest, Handle, Sink
from services.worker.engine_requests import DecodingPlan, EngineRequests
from services.worker.kv.prompt_blocks import NO_BLOCKS
from services.worker.kv.publisher import NO_KV
from services.worker.output.token_stream import TokenStream
from services.worker.thinking.budgeted_turn import BudgetedTurn
from services.worker.thinking.thought_counter import ThoughtCounter
from tests.kit.fake_decodings import FakeDecodings
from tests.kit.parser_cases import Block, fold

INFO = EngineInfo("played", "1", 100_000, 1, None, None, [2], frozenset())
TOOLS = [ToolSpec("run", schema={"properties": {"cmd": {"type": "string"}}})]


@cache
def vocabulary_of(tokenizer: PromptTokenizer) -> Vocabulary:
    return Vocabulary(tokenizer.backend)


@cache
def thoughts_of(tokenizer: PromptTokenizer, name: str) -> ThoughtSpelling | None:
    return thought_spelling(tokenizer, families()[name])


class Turn:
    """A turn with a budget whose engine plays `ids`, and after each ended thought the next of
    `more`. Each step of the engine has one of `steps` tokens."""

    def __init__(
        self,
        budget: ThoughtBudget,
        ids: Sequence[int],
        more: Sequence[Sequence[int]] = (),
        *,
        steps: Sequence[int] = (1,),
        max_tokens: int = 10_000,
        resume: Sequence[int] = (),
        logprobs: bool = False,
        updates: bool = False,
    ) -> None:
        """`updates`: each step is decoded by the next version of the weights."""
        self.steps, self.chance = steps, random.Random(len(ids))
        counter = ThoughtCounter(budget)
        resumed = [*resume, *counter.resume(resume)][:max_tokens]
        self.decoding = FakeDecodings().open(resumed)
        self.stream = self.decoding.stream
        self.closed = self.continued = 0
        self.ends: list[int] = []
        """The number of ids at which the engine continues after the end of a thought."""
        self.updates, self.version = updates, 0
        self.versions: list[list[int]] = []
        """The version of each token that the engine decoded, in each of its segments."""
        self.sink = self._sink(counter, resumed, max_tokens)
        self.is_open, self.decoding.handle = True, self
        self._soon: list[Callable[[], None]] = []
        self._play(list(ids), max_tokens - len(self.stream.ids), logprobs)
        for segment in more:
            if self.decoding.ended or not self._soon:
                break
            self._soon.pop()()
            self._play(list(segment), max_tokens - len(self.stream.ids), logprobs)

    def _sink(self, counter: ThoughtCounter, resumed: list[int], max_tokens: int) -> BudgetedTurn:
        request = GenerateRequest(
            turn="t",
            model="m",
            prompt=pack_ids([1]),
            attempt=1,
            parser="p",
            frontend="f",
            sampling=Sampling(max_tokens=max_tokens),
            stop_ids=[2],
            context=msgspec.Raw(b"{}"),
        )
        first = EngineRequest("t.1", [1, *resumed], request.sampling, [2], resumed=len(resumed))
        plan = DecodingPlan(request, first, resumed, NO_BLOCKS, counter)
        this: Any = self
        return BudgetedTurn(
            self.decoding,
            plan,
            engine=this,
            requests=EngineRequests(this, INFO, NO_KV),
            observer=this,
            loop=this,
        )

    def _play(self, ids: list[int], left: int, logprobs: bool) -> None:
        cached: int | None = 7 + self.continued
        at = 0
        self.versions.append([])
        while self.is_open:
            size = min(self.chance.choice(self.steps), left - at, len(ids) - at)
            part = ids[at : at + size]
            at += size
            finish = stop_id = None
            if at == left:
                finish = FinishReason.LENGTH
            elif at == len(ids):
                finish, stop_id = FinishReason.STOP, 2
            scores = [[(token, -0.5)] for token in part] if logprobs else None
            self.version += self.updates
            self.versions[-1] += [self.version] * len(part)
            weights = self.version or None
            delta = EngineDelta(part, scores, cached, finish, stop_id=stop_id, weights=weights)
            self.sink.put(delta)
            cached = None
            if finish is not None:
                assert self.decoding.ended or not self.is_open, "an end was lost"
                return

    def call_soon(self, callback: Callable[[], None]) -> None:
        """The loop's."""
        assert not self.is_open, "the engine was stopped first"
        self.continued += 1
        self.ends.append(len(self.stream.ids))
        self._soon.append(callback)

    def open(self, request: EngineRequest, sink: Sink) -> Handle:
        """The engine's."""
        assert sink is self.sink
        assert list(request.token_ids) == [1, *self.stream.ids]
        self.is_open = True
        return self

    def close(self) -> None:
        """The handle's."""
        self.is_open = False
        self.closed += 1


def read(
    name: str, tokenizer: PromptTokenizer, stream: TokenStream, in_reasoning: bool
) -> tuple[list[Block], Finish]:
    """The blocks and the end of a stream, by the parser stage."""
    context = ParseContext("m", name, "f", 10, tools=TOOLS, in_reasoning=in_reasoning)
    turn = TurnStream("t", 1, context, "w")
    vocabulary = FamilyVocabulary(vocabulary_of(tokenizer), find_family(name))
    parse = TurnParse.open(turn, vocabulary, Sealer.load(None, "m"))
    for token in stream.ids:
        parse.feed([token])
    parse.finish(stream.finish or TokenFinish(FinishReason.STOP, 2))
    events: list[Any] = parse.read(10**9)[0]
    end = events.pop()
    assert isinstance(end, Finish)
    return fold(events), end


def thought(family: Family, text: str, in_reasoning: bool) -> str:
    written = family.style.write_reasoning(text)
    if not in_reasoning:
        return written
    opener = family.style.reasoning.partition("{text}")[0]
    return written.removeprefix(opener)


def budget_of(
    name: str, tokenizer: PromptTokenizer, tokens: int, in_reasoning: bool
) -> ThoughtBudget:
    thoughts = thoughts_of(tokenizer, name)
    assert thoughts is not None
    return ThoughtBudget.of(thoughts, tokens, in_reasoning=in_reasoning)
