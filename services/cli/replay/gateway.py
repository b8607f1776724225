"""The pipeline behind a frontend, played from a file: a `TurnGateway` in memory.

Written output goes through the real parser shard, one token for each piece, so that call ids, seals, stop strings and
token counts are as in a live turn. Recorded events go to the frontend as they were.
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
from services.cli.replay.script import Events, Fail, Gate, Pause, Replay, Say, Tokens, Turn
from services.frontend.turns import CancelReason, TurnSink
from services.parser.detokenizer import Vocabulary
from services.parser.shard import Shard
from services.preprocessor.wording import tool_definition
from services.runtime.seal import Sealer

MODEL = "replay"
GATE_TIMEOUT_S = 5.0
_WINDOW = 1 << 20
_SENDER = "replay"


class Gates:
    """Holds the play up until the client has seen what a gate waits for."""

    def __init__(self, timeout_s: float = GATE_TIMEOUT_S) -> None:
        self.problems: list[str] = []
        """Gates that did not open in time."""
        self._timeout_s = timeout_s
        self._passed: list[Gate] = []
        self._answer = Answer()
        self._changed = asyncio.Event()

    def look(self, answer: Answer) -> None:
        """The client has read on."""
        self._answer = answer
        self._changed.set()

    async def wait(self, gate: Gate) -> None:
        """Returns when the client has seen it, or when it has had its time."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while not self._open(gate):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            seen = [block.shown() for block in self._answer.blocks]
            self.problems.append(f"the gate `{gate.label}` did not open: the client has seen {seen}")
        self._passed.append(gate)

    def _open(self, gate: Gate) -> bool:
        needed = 1 + sum(passed.label == gate.label for passed in self._passed)
        # Responses ends a message only when it knows what follows; that its text is there is enough.
        seen = [block for block in self._answer.blocks if block.complete or (block.kind == "text" and block.text)]
        return sum(gate.passes(block.kind, block.told) for block in seen) >= needed


class ReplayTurn:
    """An `OpenTurn` that is played."""

    def __init__(self, turn_id: str, card: ModelCard, prepared: Prepared) -> None:
        self.id = turn_id
        self.card = card
        self.prepared = prepared
        self.player: asyncio.Task[None] | None = None

    def cancel(self, reason: CancelReason) -> None:
        """See `OpenTurn.cancel`."""
        if self.player is not None:
            self.player.cancel()


class ReplayGateway:
    """Plays the turns of one file, one after the other; `begin` says which one comes next.

    `vocabulary`: of the model that a recording was made with; then its tokens are parsed again, and its events left
    out. `speed`: how fast pauses and recorded times pass; None: at once.
    """

    def __init__(self, replay: Replay, *, vocabulary: Vocabulary | None = None, speed: float | None = None) -> None:
        self.asked: list[Conversation] = []
        """What the frontend made of each request."""
        self._replay = replay
        self._speed = speed
        self._recorded = vocabulary
        pieces = sorted(
            {piece for turn in replay.turns for step in turn.steps if isinstance(step, Say) for piece in step.pieces}
        )
        self._vocabulary, self._ids = vocabulary_of(pieces)
        self._card = ModelCard(MODEL, max_model_len=_WINDOW, reasoning=True, tools=True, created=1)
        self._turn = replay.turns[0]
        self._gates: Gates | None = None

    def begin(self, turn: Turn, gates: Gates | None) -> None:
        """The turn that the next request gets; `gates` None: its gates are open."""
        self._turn, self._gates = turn, gates

    async def open(
        self, conversation: Conversation, sink: TurnSink, *, turn_id: str, traceparent: str | None = None
    ) -> ReplayTurn:
        """See `TurnGateway.open`."""
        self.asked.append(conversation)
        if self._turn.refuse is not None:
            raise raised(self._turn.refuse)
        usage = self._turn.usage
        limit = conversation.sampling.max_tokens
        left = _WINDOW - usage.prompt
        prepared = Prepared(usage.prompt, left if limit is None else min(limit, left), _SENDER, _SENDER)
        turn = ReplayTurn(turn_id, self._card, prepared)
        play = self._play(self._turn, self._gates, conversation, sink, turn)
        turn.player = asyncio.get_running_loop().create_task(play)
        return turn

    async def _play(
        self, turn: Turn, gates: Gates | None, conversation: Conversation, sink: TurnSink, opened: ReplayTurn
    ) -> None:
        try:
            await self._perform(turn, gates, conversation, sink, opened)
        except Exception as error:  # else the client would wait for ever
            sink.push([Failed(EngineFailed(f"this cannot be played: {error}").info)])

    async def _perform(
        self, turn: Turn, gates: Gates | None, conversation: Conversation, sink: TurnSink, opened: ReplayTurn
    ) -> None:
        voice = self._voice(turn, conversation, opened)
        started = asyncio.get_running_loop().time()
        for step in turn.steps:
            events: Sequence[TurnEvent] = ()
            match step:
                case Gate() if gates is not None:
                    await gates.wait(step)
                case Pause() if self._speed is not None:
                    await asyncio.sleep(step.ms / 1000 / self._speed)
                case Say() if voice is not None:
                    events = voice.say([self._ids[piece] for piece in step.pieces if piece])
                case Tokens() if voice is not None and self._recorded is not None:
                    await self._until(started, step.at)
                    events = voice.say(step.ids)
                case Events():
                    await self._until(started, step.at)
                    events = [event for event in step.events if not isinstance(event, Prepared)]
                    if voice is not None and events:
                        events = _again(voice, events[-1])
                case Fail():
                    events = [Failed(EngineFailed(step.message).info)]
            if events:
                sink.push(list(events))
                await asyncio.sleep(0)  # the frontend writes it before more comes
            if any(isinstance(event, Finish | Failed) for event in events):
                return
        if voice is not None:
            sink.push(voice.finish(turn.finish))

    async def _until(self, started: float, at: float) -> None:
        if self._speed is not None:
            await asyncio.sleep(max(0.0, started + at / self._speed - asyncio.get_running_loop().time()))

    def _voice(self, turn: Turn, conversation: Conversation, opened: ReplayTurn) -> "_Voice | None":
        """What parses; None where all is recorded events."""
        recorded = self._recorded
        if any(isinstance(step, Events) for step in turn.steps) and recorded is None:
            return None
        context = turn.context if recorded is not None else None
        if context is None:
            context = parse_context(self._replay, conversation, opened.prepared)
        return _Voice(recorded or self._vocabulary, opened.id, context, turn)

    # -- the rest of a TurnGateway --------------------------------------------------------------------------------

    async def count(self, conversation: Conversation) -> int:
        """See `TurnGateway.count`."""
        return self._turn.usage.prompt

    async def tokenize(
        self, model: str, text: str | None, conversation: Conversation | None, add_special_tokens: bool
    ) -> TextReply:
        """There is no tokenizer in a replay."""
        raise Unavailable("a replay has no tokenizer")

    async def detokenize(self, model: str, token_ids: list[int]) -> TextReply:
        """There is no tokenizer in a replay."""
        raise Unavailable("a replay has no tokenizer")

    def models(self) -> list[ModelCard]:
        """See `TurnGateway.models`."""
        return [self._card]

    def resolve(self, model: str) -> ModelCard:
        """See `TurnGateway.resolve`. Recorded requests name models of their own: any will do."""
        if not model:
            raise NotFound("model: ")
        return self._card

    def readiness(self) -> dict[str, Any]:
        """See `TurnGateway.readiness`."""
        return {"ready": True, "models": [MODEL]}

    def live(self) -> bool:
        """See `TurnGateway.live`."""
        return True


def _again(voice: "_Voice", last: TurnEvent) -> Sequence[TurnEvent]:
    """How the engine ended a turn whose tokens are parsed again: it said so to the parser, not in tokens."""
    if isinstance(last, Failed):
        return [last]
    if not isinstance(last, Finish) or last.reason is FinishReason.STOP_STRING:
        return []
    return voice.finish(FinishReason.LENGTH if last.reason is FinishReason.CONTEXT else last.reason)


class _Voice:
    """One turn in a parser shard of its own."""

    def __init__(self, vocabulary: Vocabulary, turn_id: str, context: ParseContext, turn: Turn) -> None:
        self._shard = Shard(vocabulary, Sealer(b"replay"))
        self._turn_id = turn_id
        self._usage = turn.usage
        self._said = 0
        self._take(TokenEntry(turn_id, 1, 0, context=msgspec.Raw(msgspec.json.encode(context))))

    def say(self, ids: list[int]) -> list[TurnEvent]:
        entry = TokenEntry(self._turn_id, 1, self._said, ids, cached=self._usage.cached or None)
        self._said += len(ids)
        return self._take(entry)

    def finish(self, reason: FinishReason) -> list[TurnEvent]:
        stop_id = 0 if reason is FinishReason.STOP else None
        return self._take(TokenEntry(self._turn_id, 1, self._said, finish=TokenFinish(reason, stop_id)))

    def _take(self, entry: TokenEntry) -> list[TurnEvent]:
        self._shard.take(entry, _SENDER)
        parse = self._shard.turns[self._turn_id]
        events, _ = parse.log.read(parse.sent)
        return list(events)


def parse_context(replay: Replay, conversation: Conversation, prepared: Prepared) -> ParseContext:
    """What the preprocessor would tell the parser of this request."""
    choice = conversation.tool_choice
    return ParseContext(
        model=MODEL,
        family=replay.family,
        frontend=_SENDER,
        prompt_tokens=prepared.prompt_tokens,
        max_tokens=prepared.max_tokens,
        tools=[_as_told(tool) for tool in conversation.tools],
        in_reasoning=replay.in_reasoning,
        stop=conversation.sampling.stop,
        calls="none" if choice.mode == "none" else "parallel" if choice.parallel else "single",
        allowed=choice.allowed,
    )


def _as_told(tool: ToolSpec) -> ToolSpec:
    told = tool_definition(tool)["function"]
    return msgspec.structs.replace(tool, name=told["name"], schema=told["parameters"], namespace=None)


def vocabulary_of(pieces: Sequence[str]) -> tuple[Vocabulary, dict[str, int]]:
    """A byte-level vocabulary in which each piece is a token of its own, and their ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    ids: dict[str, int] = {}
    for piece in pieces:
        if piece:
            token = spelled.pre_tokenize_str(piece)[0][0]
            ids[piece] = vocabulary.setdefault(token, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = spelled
    tokenizer.decoder = decoders.ByteLevel()
    return Vocabulary(tokenizer), ids
