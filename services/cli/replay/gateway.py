"""A `TurnGateway` in memory that plays the turns of a replay file, in place of the pipeline behind a frontend.

Written output goes through the real parser shard, one token for each piece, so that call ids, seals, stop strings and
token counts are as in a live turn. Recorded events go to the frontend unchanged.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from schemas.control import ModelCard
from schemas.conversation import Conversation, ToolSpec
from schemas.errors import EngineFailed, NotFound, Unavailable, raised
from schemas.events import Failed, Finish, FinishReason, Prepared, TurnEvent
from schemas.frames import ParseContext, TextReply, TokenEntry, TokenFinish
from services.cli.replay.answer import Answer
from services.cli.replay.script import Fail, Gate, Output, Pause, RecordedEvents, RecordedTokens, Replay, Step, Turn
from services.frontend.pipeline.interfaces import CancelReason, TurnSink
from services.parser.shard import Shard
from services.runtime.seal import Sealer
from services.runtime.streams.turn_log import TurnLog, with_dispatches
from services.templates.tools import tool_definition
from services.tokenization.detokenizer import Vocabulary

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
        self._answer = Answer()
        self._changed = asyncio.Event()

    def update(self, answer: Answer) -> None:
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
            self.problems.append(f"the gate `{gate.label}` did not open: the client has {self._answer.story}")
        self._passed.append(gate)

    def _is_open(self, gate: Gate) -> bool:
        needed = 1 + sum(passed.label == gate.label for passed in self._passed)
        # The end of a message in Responses depends on what follows: for text, its presence is enough.
        received = [block for block in self._answer.blocks if block.complete or (block.kind == "text" and block.text)]
        return sum(gate.matches(block.kind, block.full_name) for block in received) >= needed


class ReplayTurn:
    """An `OpenTurn` of a replay."""

    def __init__(self, turn_id: str, card: ModelCard, prepared: Prepared) -> None:
        self.id = turn_id
        self.card = card
        self.prepared = prepared
        self.task: asyncio.Task[None] | None = None

    def cancel(self, reason: CancelReason) -> None:
        """See `OpenTurn.cancel`."""
        if self.task is not None:
            self.task.cancel()


class ReplayGateway:
    """Plays the turns of one file; `select` chooses the next one.

    `vocabulary`: of the model with which a recording was made; its tokens are then parsed again, and its events
    ignored. `speed`: how fast pauses and recorded times pass; None: at once.
    """

    def __init__(self, replay: Replay, *, vocabulary: Vocabulary | None = None, speed: float | None = None) -> None:
        self.conversations: list[Conversation] = []
        """The frontend's conversation for each request."""
        self._replay = replay
        self._speed = speed
        self._model_vocabulary = vocabulary
        steps = [step for turn in replay.turns for step in turn.steps if isinstance(step, Output)]
        self._vocabulary, self._ids = vocabulary_of(sorted({piece for step in steps for piece in step.pieces}))
        self._card = ModelCard(MODEL, max_model_len=_WINDOW, reasoning=True, tools=True, created=1)
        self._turn = replay.turns[0]
        self._progress: ClientProgress | None = None

    def select(self, turn: Turn, progress: ClientProgress | None) -> None:
        """Chooses the turn for the next request; without `progress`, all gates are open."""
        self._turn, self._progress = turn, progress

    async def open(self, conversation: Conversation, sink: TurnSink, *, turn_id: str) -> ReplayTurn:
        """See `TurnGateway.open`."""
        self.conversations.append(conversation)
        if self._turn.refuse is not None:
            raise raised(self._turn.refuse)
        usage = self._turn.usage
        left = _WINDOW - usage.prompt
        limit = conversation.sampling.max_tokens
        prepared = Prepared(usage.prompt, left if limit is None else min(limit, left), _SENDER, _SENDER)
        opened = ReplayTurn(turn_id, self._card, prepared)
        opened.task = asyncio.create_task(
            self._play(self._turn, self._progress, self._parser(conversation, opened), sink)
        )
        return opened

    async def _play(
        self, turn: Turn, progress: ClientProgress | None, parser: "OutputParser | None", sink: TurnSink
    ) -> None:
        try:
            started, log = asyncio.get_running_loop().time(), TurnLog()
            for step in turn.steps:
                if isinstance(step, RecordedEvents | RecordedTokens):
                    await self._wait_until(started, step.at)
                elif isinstance(step, Pause) and self._speed is not None:
                    await asyncio.sleep(step.ms / 1000 / self._speed)
                elif isinstance(step, Gate) and progress is not None:
                    await progress.wait_for(step)
                events = self._events_of(step, parser, log)
                if events:
                    sink.push(list(events))
                    await asyncio.sleep(0)  # the frontend writes them before the next ones
                if any(isinstance(event, Finish | Failed) for event in events):
                    return
            if parser is not None:
                sink.push(parser.finish(turn.finish))
        except Exception as error:  # otherwise the client would wait for ever
            sink.push([Failed(EngineFailed(f"the turn cannot be played: {error}").info)])

    def _events_of(self, step: Step, parser: "OutputParser | None", log: TurnLog) -> Sequence[TurnEvent]:
        match step:
            case Output(pieces) if parser is not None:
                return parser.feed([self._ids[piece] for piece in pieces if piece])
            case RecordedTokens(ids) if parser is not None and self._model_vocabulary is not None:
                return parser.feed(ids)
            case RecordedEvents():
                events = [event for event in step.events if not isinstance(event, Prepared)]
                if parser is not None and events:
                    return _recorded_end(parser, events[-1])
                return list(with_dispatches(events, log))
            case Fail(message):
                return [Failed(EngineFailed(message).info)]
        return ()

    async def _wait_until(self, started: float, at: float) -> None:
        if self._speed is not None:
            await asyncio.sleep(max(0.0, started + at / self._speed - asyncio.get_running_loop().time()))

    def _parser(self, conversation: Conversation, opened: ReplayTurn) -> "OutputParser | None":
        """The parser of a turn's output; None if the turn consists of recorded events."""
        turn = self._turn
        context = parse_context(self._replay, conversation, opened.prepared)
        if self._model_vocabulary is not None:
            return OutputParser(self._model_vocabulary, opened.id, turn.context or context, turn)
        if any(isinstance(step, RecordedEvents) for step in turn.steps):
            return None
        return OutputParser(self._vocabulary, opened.id, context, turn)

    async def count(self, conversation: Conversation) -> int:
        """See `TurnGateway.count`."""
        return self._turn.usage.prompt

    async def tokenize(
        self, model: str, text: str | None, conversation: Conversation | None, add_special_tokens: bool
    ) -> TextReply:
        """Not available in a replay."""
        raise Unavailable("a replay has no tokenizer")

    async def detokenize(self, model: str, token_ids: list[int]) -> TextReply:
        """Not available in a replay."""
        raise Unavailable("a replay has no tokenizer")

    def models(self) -> list[ModelCard]:
        """See `TurnGateway.models`."""
        return [self._card]

    def resolve(self, model: str) -> ModelCard:
        """See `TurnGateway.resolve`. Any name is served, since recorded requests name their own models."""
        if not model:
            raise NotFound("model: ")
        return self._card

    def readiness(self) -> dict[str, Any]:
        """See `TurnGateway.readiness`."""
        return {"ready": True, "models": [MODEL]}

    def live(self) -> bool:
        """See `TurnGateway.live`."""
        return True


class OutputParser:
    """Parses the output of one turn, in a parser shard of its own."""

    def __init__(self, vocabulary: Vocabulary, turn_id: str, context: ParseContext, turn: Turn) -> None:
        self._shard = Shard(vocabulary, Sealer(b"replay"))
        self._turn_id = turn_id
        self._cached = turn.usage.cached or None
        self._size = 0
        self._take(TokenEntry(turn_id, 1, 0, context=msgspec.Raw(msgspec.json.encode(context))))

    def feed(self, ids: list[int]) -> list[TurnEvent]:
        """The events of the next tokens."""
        entry = TokenEntry(self._turn_id, 1, self._size, ids, cached=self._cached)
        self._size += len(ids)
        return self._take(entry)

    def finish(self, reason: FinishReason) -> list[TurnEvent]:
        """The events at the end of the output."""
        stop_id = 0 if reason is FinishReason.STOP else None
        return self._take(TokenEntry(self._turn_id, 1, self._size, finish=TokenFinish(reason, stop_id)))

    def _take(self, entry: TokenEntry) -> list[TurnEvent]:
        self._shard.take(entry, _SENDER)
        parse = self._shard.turns[self._turn_id]
        events, _ = parse.log.read(parse.sent)
        return list(events)


def _recorded_end(parser: OutputParser, last: TurnEvent) -> Sequence[TurnEvent]:
    """The end of a turn whose tokens are parsed again: its reason is in the recorded events, not in the tokens."""
    if isinstance(last, Failed):
        return [last]
    if not isinstance(last, Finish) or last.reason is FinishReason.STOP_STRING:
        return []
    return parser.finish(FinishReason.LENGTH if last.reason is FinishReason.CONTEXT else last.reason)


def parse_context(replay: Replay, conversation: Conversation, prepared: Prepared) -> ParseContext:
    """The parse context that the preprocessor would make for this request."""
    choice = conversation.tool_choice
    return ParseContext(
        model=MODEL,
        family=replay.family,
        frontend=_SENDER,
        prompt_tokens=prepared.prompt_tokens,
        max_tokens=prepared.max_tokens,
        tools=[_rendered(tool) for tool in conversation.tools],
        in_reasoning=replay.header.in_reasoning,
        stop=conversation.sampling.stop,
        calls="none" if choice.mode == "none" else "parallel" if choice.parallel else "single",
        allowed=choice.allowed,
    )


def _rendered(tool: ToolSpec) -> ToolSpec:
    function = tool_definition(tool)["function"]
    return msgspec.structs.replace(tool, name=function["name"], schema=function["parameters"], namespace=None)


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
