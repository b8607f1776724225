"""A frontend in this process, and the gateway that plays the turns of a replay file in place of the
pipeline.

Written output goes through the real parser, one token for each piece, so that call ids, seals, stop
strings and token counts are as in a live turn. Recorded events go to the frontend unchanged.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from schemas.control import EngineControl, EngineState, ModelCard
from schemas.conversation import Conversation, ToolChoice
from schemas.errors import EngineFailed, NotFound, Unavailable, raised
from schemas.events import Failed, Finish, FinishReason, Prepared, TurnEvent
from schemas.frames import TokenFinish
from schemas.requests import ParseContext, TextReply
from services.families import find_family
from services.frontend.app import Telemetry, make_app, make_runner
from services.frontend.models.catalog import allow_all
from services.frontend.models.shared_names import ModelFilter
from services.frontend.turns.interfaces import Admitted, CancelReason, OpenTurn, Pipeline, TurnSink
from services.parser.turn_parse import TurnParse
from services.parser.turn_stream import TurnStream
from services.runtime.config.frontend import FrontendConfig
from services.runtime.storage.seal import Sealer
from services.runtime.streams.turn_log import TurnLog
from services.templates.tools import rendered_tool
from services.tokenization.detokenizer import FamilyVocabulary, Vocabulary
from turnwire_tools.clients.answer import AnswerBlock, ClientAnswer
from turnwire_tools.dispatches import with_dispatches
from turnwire_tools.replay.replay_file import (
    Fail,
    Gate,
    Output,
    Pause,
    RecordedEvents,
    RecordedTokens,
    ReplayFile,
    ReplayTurn,
    Step,
)

MODEL = "replay"
GATE_TIMEOUT_S = 5.0
_WINDOW = 1 << 20
_SENDER = "replay"


class ClientProgress:
    """What the client has received of an answer. The gateway waits for it at gates."""

    def __init__(self, timeout_s: float = GATE_TIMEOUT_S) -> None:
        self.problems: list[str] = []
        """Gates that did not open in time."""
        self._timeout_s = timeout_s
        self._passed: list[Gate] = []
        self._answer = ClientAnswer()
        self._changed = asyncio.Event()

    def update(self, answer: ClientAnswer) -> None:
        """The client has received this much."""
        self._answer = answer
        self._changed.set()

    async def wait_for(self, gate: Gate) -> None:
        """Returns when the client has received the gate's block, or after the timeout."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while not self._is_open(gate):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self.problems.append(
                f"the gate `{gate.gate}` did not open: the client has {self._answer.story}"
            )
        self._passed.append(gate)

    def _is_open(self, gate: Gate) -> bool:
        needed = 1 + sum(passed.gate == gate.gate for passed in self._passed)
        received = [block for block in self._answer.blocks if _is_received(block)]
        return sum(gate.matches(block.kind, block.full_name) for block in received) >= needed


def _is_received(block: AnswerBlock) -> bool:
    """Whether a gate may count a block. The end of a message in Responses depends on what follows:
    for text, its presence is enough."""
    return block.complete or (block.kind == "text" and block.text != "")


class ReplayGateway:
    """Plays the turns of one file; `select` chooses the next one.

    `vocabulary`: of the model with which a recording was made; its tokens are then parsed again,
    and its events ignored. `speed`: how fast pauses and recorded times pass; None: at once.
    """

    def __init__(
        self,
        replay: ReplayFile,
        *,
        vocabulary: Vocabulary | None = None,
        speed: float | None = None,
    ) -> None:
        self.gateway = self
        self.catalog = self
        """It is a `Pipeline`, and its `TurnGateway` and `Catalog`."""
        self.conversations: list[Conversation] = []
        """The frontend's conversation for each request."""
        self._replay = replay
        self._speed = speed
        self._model_vocabulary = vocabulary
        self._vocabulary, self._ids = vocabulary_of(sorted(_pieces_of(replay)))
        self._card = ModelCard(MODEL, max_model_len=_WINDOW, reasoning=True, tools=True, created=1)
        self._turn = replay.turns[0]
        self._progress: ClientProgress | None = None

    def select(self, turn: ReplayTurn, progress: ClientProgress | None) -> None:
        """Chooses the turn for the next request; without `progress`, all gates are open."""
        self._turn = turn
        self._progress = progress

    async def open(self, admitted: Admitted, sink: TurnSink, *, turn_id: str) -> OpenTurn:
        """Plays the chosen turn."""
        conversation = admitted.conversation
        self.conversations.append(conversation)
        if self._turn.refuse is not None:
            raise raised(self._turn.refuse)

        prepared = self._prepared(conversation)
        parse = self._parse(self._turn, turn_id, conversation, prepared)
        playing = asyncio.create_task(self._play(self._turn, self._progress, parse, sink))

        def cancel(_reason: CancelReason) -> None:
            playing.cancel()

        return OpenTurn(prepared, cancel)

    async def drain(self) -> None:
        """Does nothing: the player waits for the end of each turn."""

    async def control(self, model: str, control: EngineControl) -> list[EngineState]:
        """Controls nothing: there are no workers."""
        raise Unavailable(f"no worker serves {model}")

    def _prepared(self, conversation: Conversation) -> Prepared:
        prompt = self._turn.usage.prompt
        limit = _WINDOW - prompt
        if conversation.sampling.max_tokens is not None:
            limit = min(limit, conversation.sampling.max_tokens)
        return Prepared(prompt, limit, _SENDER, _SENDER)

    async def _play(
        self,
        turn: ReplayTurn,
        progress: ClientProgress | None,
        parse: TurnParse | None,
        sink: TurnSink,
    ) -> None:
        try:
            started = asyncio.get_running_loop().time()
            log = TurnLog()
            for step in turn.steps:
                await self._wait(step, started, progress)
                events = self._events_of(step, parse, log)
                if events:
                    sink.push(events)
                    await asyncio.sleep(0)  # the frontend writes them before the next ones
                if any(isinstance(event, Finish | Failed) for event in events):
                    return
            if parse is not None:
                sink.push(_finished(parse, turn.finish))
        except Exception as error:  # otherwise the client would wait for ever
            sink.push([Failed(EngineFailed(f"the turn cannot be played: {error}").info)])

    async def _wait(self, step: Step, started: float, progress: ClientProgress | None) -> None:
        match step:
            case RecordedEvents(at=at) | RecordedTokens(at=at) if self._speed is not None:
                due = started + at / self._speed
                await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            case Pause(ms) if self._speed is not None:
                await asyncio.sleep(ms / 1000 / self._speed)
            case Gate() if progress is not None:
                await progress.wait_for(step)

    def _events_of(self, step: Step, parse: TurnParse | None, log: TurnLog) -> list[TurnEvent]:
        match step:
            case Fail(message):
                return [Failed(EngineFailed(message).info)]
            case RecordedEvents(events) if parse is None:
                return list(with_dispatches(events, log))
        if parse is None:
            return []
        return self._parsed(step, parse)

    def _parsed(self, step: Step, parse: TurnParse) -> list[TurnEvent]:
        """What the parser makes of a step."""
        match step:
            case Output(pieces):
                return _fed(parse, [self._ids[piece] for piece in pieces if piece])
            case RecordedTokens(ids) if self._model_vocabulary is not None:
                return _fed(parse, ids)
            # The tokens are parsed again; the reason of their end is in the events.
            case RecordedEvents([*_, Failed() as failed]):
                return [failed]
            case RecordedEvents([*_, Finish(reason=FinishReason.CONTEXT)]):
                return _finished(parse, FinishReason.LENGTH)
            case RecordedEvents([*_, Finish(reason=reason)]) if reason != "stop_string":
                return _finished(parse, reason)
        return []

    def _parse(
        self, turn: ReplayTurn, turn_id: str, conversation: Conversation, prepared: Prepared
    ) -> TurnParse | None:
        """The parse of a turn's output; None if the turn consists of recorded events."""
        context = parse_context(self._replay, conversation, prepared)
        if self._model_vocabulary is not None:
            context = msgspec.structs.replace(turn.context or context, logprobs=None)
        elif any(isinstance(step, RecordedEvents) for step in turn.steps):
            return None
        cached = turn.usage.cached
        stream = TurnStream(turn_id, 1, context, _SENDER, cached=cached)
        tokens = self._model_vocabulary or self._vocabulary
        vocabulary = FamilyVocabulary(tokens, find_family(context.family))
        return TurnParse.open(stream, vocabulary, Sealer(b"replay"))

    async def count(self, admitted: Admitted) -> int:
        """The tokens that the file names for the chosen turn."""
        return self._turn.usage.prompt

    async def tokenize(
        self, admitted: Admitted, text: str | None, add_special_tokens: bool
    ) -> TextReply:
        """Not available in a replay."""
        raise Unavailable("a replay has no tokenizer")

    async def detokenize(self, admitted: Admitted, token_ids: list[int]) -> TextReply:
        """Not available in a replay."""
        raise Unavailable("a replay has no tokenizer")

    def models(self) -> list[ModelCard]:
        """The one model."""
        return [self._card]

    def resolve(
        self,
        model: str,
        conversation: Conversation | None = None,
        allows: ModelFilter = allow_all,
    ) -> ModelCard:
        """The one model. Any name is served, since recorded requests name their own models."""
        if not model:
            raise NotFound("model: ")
        return self._card

    def readiness(self) -> dict[str, Any]:
        """Always ready."""
        return {"ready": True, "models": [MODEL]}

    def live(self) -> bool:
        """Always."""
        return True


def _fed(parse: TurnParse, ids: Sequence[int]) -> list[TurnEvent]:
    if not parse.ended:
        parse.feed(ids)
    return list(parse.read(sys.maxsize)[0])


def _finished(parse: TurnParse, reason: FinishReason) -> list[TurnEvent]:
    stop_id = 0 if reason is FinishReason.STOP else None
    parse.finish(TokenFinish(reason, stop_id=stop_id))
    return list(parse.read(sys.maxsize)[0])


def parse_context(
    replay: ReplayFile, conversation: Conversation, prepared: Prepared
) -> ParseContext:
    """The parse context that the preprocessor would make for this request."""
    choice = conversation.tool_choice
    return ParseContext(
        model=MODEL,
        family=replay.header.family,
        frontend=_SENDER,
        prompt_tokens=prepared.prompt_tokens,
        max_tokens=prepared.max_tokens,
        tools=[rendered_tool(tool) for tool in conversation.tools],
        in_reasoning=replay.header.in_reasoning,
        stop=conversation.sampling.stop,
        calls=_allowed_calls(choice),
        allowed=choice.allowed,
    )


def _allowed_calls(choice: ToolChoice) -> Literal["none", "single", "parallel"]:
    if choice.mode == "none":
        return "none"
    return "parallel" if choice.parallel else "single"


def _pieces_of(replay: ReplayFile) -> set[str]:
    """All pieces of output in a file."""
    pieces: set[str] = set()
    for turn in replay.turns:
        for step in turn.steps:
            if isinstance(step, Output):
                pieces.update(step.pieces)
    return pieces


def vocabulary_of(pieces: Sequence[str]) -> tuple[Vocabulary, dict[str, int]]:
    """A byte-level vocabulary in which each piece is one token, and the ids of the pieces."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    ids: dict[str, int] = {}
    for piece in filter(None, pieces):
        token = byte_level.pre_tokenize_str(piece)[0][0]
        ids[piece] = vocabulary.setdefault(token, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    return Vocabulary(tokenizer), ids


@asynccontextmanager
async def serving(pipeline: Pipeline) -> AsyncIterator[str]:
    """Serves the whole HTTP stack on a free loopback port; yields its URL."""
    log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])  # writes nothing
    config = FrontendConfig(rollout_store_mb=0)
    app = make_app(config, pipeline, Telemetry(CollectorRegistry(), log))
    runner = make_runner(app.web, config, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
