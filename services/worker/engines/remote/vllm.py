"""The token interface of `vllm serve` (`POST /inference/v1/generate`), of 0.32 and 0.33.

Sources: `vllm/entrypoints/scale_out/token_in_token_out/protocol.py` and `serving.py`, and
`vllm/entrypoints/serve/instrumentator` of 0.32.0; run with 0.32.0 on a CPU.
"""

import re
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext

import msgspec
from msgspec import Raw, Struct
from typing_extensions import override

from schemas.errors import EngineFailed, Invalid
from schemas.events import FinishReason
from services.runtime.config.stages import WorkerConfig
from services.tokenization.model_files import ModelFacts
from services.worker.engine import EngineDied, EngineRequest
from services.worker.engines.arguments import guided_arguments, integer_priority
from services.worker.engines.remote.dialect import (
    NO_EXPERTS,
    PAUSE_S,
    UPDATE_S,
    BadAnswer,
    Call,
    Chunk,
    ChunkReader,
    Counts,
    Dialect,
    LabeledSpan,
    ListedModel,
    Pulse,
    ServerFacts,
    TurnEnd,
    UpdatableServer,
    WeightsState,
    event_host,
    list_adapters,
    list_models,
    version_of,
)
from services.worker.engines.remote.engine import UpdatableServerEngine
from services.worker.engines.remote.http import Refused, ServerHttp, Unreachable
from services.worker.engines.remote.images import data_url
from services.worker.engines.vllm.requests import sampling_arguments

PATH = "/inference/v1/generate"
NEEDS = "start it with `vllm serve … --enable-scale-out` (0.32 or newer)"
_ANY_HOST = "*"
_NO_TOKENIZER = "skip_tokenizer_init"
"""In the error of a server without a tokenizer, also with `--tokens-only`: `get_tokenizer` of
`vllm/renderers/base.py`."""
_ID_PREFIX = "generate-tokens-"
"""vLLM puts it before the id of a request."""
_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
_ENDED_BY_SERVER = frozenset(("abort", "error"))
"""Finish reasons of a turn that was not closed here (`vllm/v1/engine/__init__.py`, `FinishReason`):
the server was paused or shuts down, or failed internally. The turn can be continued."""
_SAMPLE = re.compile(r"^([a-z_:]+)(?:\{(.*)\})? ([^ ]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class _LogProb(Struct):
    token_id: int
    logprob: float


class _Content(_LogProb):
    top_logprobs: list[_LogProb] = []


class _LogProbs(Struct):
    content: list[_Content] | None = None


class _Choice(Struct):
    index: int
    token_ids: list[int] | None = None
    logprobs: _LogProbs | None = None
    finish_reason: str | None = None
    weight_versions: list[LabeledSpan] | None = None
    routed_experts: Raw = NO_EXPERTS


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Error(Struct):
    message: str
    code: int | str | None = None


class _Event(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: _Error | None = None
    prompt_token_ids: list[int] = []


class _Version(Struct):
    version: str


class _WeightInfo(Struct):
    weight_version: str


class _Paused(Struct):
    is_paused: bool


class _Tokens(Struct):
    tokens: list[int]


class _KvSource(Struct):
    endpoint: str = ""
    enable_kv_cache_events: bool = False
    publisher: str | None = None


_decode = msgspec.json.Decoder(_Event).decode


class VllmDialect(Dialect, UpdatableServer):
    """`vllm serve`."""

    name = "vllm-server"
    shares_queued = True
    flags = {
        "priority": "--scheduling-policy priority",
        "grammar": '--structured-outputs-config \'{"backend": "guidance"}\'',
    }
    closes_streams = False
    experts_suffix = ".npy"
    weights_need = "VLLM_SERVER_DEV_MODE=1 in its environment"

    @override
    async def describe(self, http: ServerHttp) -> ServerFacts:
        version: _Version = await http.json("/version", kind=_Version)
        await _require_interface(http)
        base = await _base_model(http)
        metrics = await http.text("/metrics")
        cache = _labels(metrics, "vllm:cache_config_info")
        block = _number(cache, "effective_attention_block_size") or _number(cache, "block_size")
        endpoint = await _kv_endpoint(http)
        lacking = _lacking(cache, endpoint)
        caches = "prefix_cache" not in lacking
        kv_tokens = _number(cache, "kv_cache_size_tokens")
        if not kv_tokens:
            kv_tokens = (_number(cache, "num_gpu_blocks") or 0) * (block or 0)
        return ServerFacts(
            version=version.version,
            model=base.id,
            root=base.root or "",
            max_model_len=base.max_model_len,
            block_tokens=block if caches else None,
            kv_tokens=kv_tokens or None,
            kv_endpoint=endpoint if caches else None,
            lacking=lacking,
            recomputed_blocks=int("vllm:spec_decode_num_drafts" in metrics),
        )

    @override
    async def tokenize(self, http: ServerHttp, server: ServerFacts, text: str) -> list[int] | None:
        body = {"model": server.model, "prompt": text, "add_special_tokens": False}
        try:
            answer: _Tokens = await http.json("/tokenize", body, _Tokens)
        except Refused as refusal:
            if refusal.status == 400 and _NO_TOKENIZER in str(refusal):
                return None
            raise
        return answer.tokens

    @override
    def generate(
        self, request: EngineRequest, ids: list[int], server: ServerFacts, model: ModelFacts
    ) -> Call:
        sampling = sampling_arguments(request, model.sampling)
        form = guided_arguments(request)
        if form is not None:
            sampling["structured_outputs"] = form
        body = {
            "request_id": request.id,
            "model": request.adapter or server.model,
            "token_ids": ids,
            "sampling_params": sampling,
            "stream": True,
            # Counts in each event show what is lost on the way.
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if request.cache_salt:
            body["cache_salt"] = request.cache_salt
        if "priority" not in server.lacking:
            body["priority"] = -integer_priority(request)  # smaller ones are sooner
        if request.images:
            body["content_parts"] = [
                {"type": "image_url", "url": data_url(image), "uuid": image.hash}
                for image in request.images
            ]
            body["return_token_ids"] = True
        return Call(PATH, body)

    @override
    def reader(self, request: EngineRequest, call: Call) -> ChunkReader:
        return _VllmReader(request.sampling.logprobs)

    @override
    def streaming(self, http: ServerHttp) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    @override
    def abort(self, call: Call) -> Call | None:
        body = {"request_ids": [_ID_PREFIX + call.body["request_id"]]}
        return Call("/inference/v1/abort_requests", body)

    @override
    async def pulse(self, http: ServerHttp) -> Pulse:
        await http.text("/health")
        metrics = await http.text("/metrics")
        return Pulse(
            started=_sum(metrics, "process_start_time_seconds"),
            steps=_sum(metrics, "vllm:iteration_tokens_total_count"),
            kv_used=_mean(metrics, "vllm:kv_cache_usage_perc"),
            adapters=await list_adapters(http),
        )

    # -- weights
    # ----------------------------------------------------------------------------------------------

    @override
    async def weights(self, http: ServerHttp) -> WeightsState | None:
        try:
            info: _WeightInfo = await http.json("/weight_info", kind=_WeightInfo)
            state: _Paused = await http.json("/is_paused", kind=_Paused)
        except Refused as refusal:
            if refusal.status == 404:
                return None
            raise
        return WeightsState(version_of(info.weight_version), state.is_paused)

    @override
    async def pause(self, http: ServerHttp, *, abort: bool) -> None:
        # The cache is emptied, also under kept turns: somebody else may load weights now.
        mode = "abort" if abort else "keep"
        await http.post(f"/pause?mode={mode}&clear_cache=true", {}, PAUSE_S)

    @override
    async def resume(self, http: ServerHttp) -> None:
        await http.post("/resume", {}, PAUSE_S)

    @override
    async def update_weights(self, http: ServerHttp, source: str, version: int) -> None:
        """Loads them from the server's disk. What is left after a failure is not known, and the
        label must not say anything else."""
        load = {"method": "reload_weights", "kwargs": {"weights_path": source}}
        reset = "/reset_prefix_cache?reset_running_requests=true&reset_external=true"
        await http.post("/update_weight_version", {"new_version": f"loading {version}"})
        try:
            await http.post("/collective_rpc", load, UPDATE_S)
            await http.post(reset, {}, PAUSE_S)
            await http.post("/update_weight_version", {"new_version": str(version)})
        except (Refused, Unreachable) as error:
            raise EngineDied(f"vLLM has not loaded the weights of {source}: {error}") from error


class _VllmReader:
    def __init__(self, top: int | None) -> None:
        self._top = top or 0

    def read(self, data: bytes) -> Chunk:
        try:
            event = _decode(data)
        except msgspec.DecodeError as error:
            raise BadAnswer(f"an event cannot be read: {error}") from error
        if event.error is not None:
            raise _error(event.error)
        chunk = Chunk(prompt_ids=event.prompt_token_ids)
        usage = event.usage
        if usage is not None:
            chunk.counts = Counts(usage.prompt_tokens, usage.completion_tokens)
            if usage.prompt_tokens_details is not None:
                chunk.cached = usage.prompt_tokens_details.cached_tokens
        if event.choices:
            if len(event.choices) != 1 or event.choices[0].index != 0:
                raise BadAnswer("it has more than one choice")
            self._read_choice(event.choices[0], chunk)
        return chunk

    def _read_choice(self, choice: _Choice, chunk: Chunk) -> None:
        if choice.token_ids is None:
            raise BadAnswer("token ids are missing")
        if chunk.counts is None:
            raise BadAnswer("tokens are not counted, so that lost ones would not show")
        chunk.ids = choice.token_ids
        if choice.logprobs is not None and choice.logprobs.content is not None:
            chunk.logprobs = [self._pairs(content) for content in choice.logprobs.content]
        if choice.finish_reason is not None:
            chunk.weights = choice.weight_versions
            chunk.experts = choice.routed_experts
            chunk.end = self._end(choice.finish_reason, chunk)

    def _end(self, reason: str, chunk: Chunk) -> TurnEnd:
        """Why the turn ended. The token at which it stopped is taken from the chunk's ids, of which
        it is the last one."""
        if reason in _ENDED_BY_SERVER:
            raise EngineDied(f"vLLM ended the turn: {reason}")
        if reason not in _FINISH:
            raise EngineFailed(f"vLLM ended the turn: {reason}")
        if reason != "stop" or not chunk.ids:
            return TurnEnd(_FINISH[reason])
        logprobs = chunk.logprobs.pop() if chunk.logprobs else None
        return TurnEnd(FinishReason.STOP, chunk.ids.pop(), logprobs)

    def _pairs(self, content: _Content) -> list[tuple[int, float]]:
        """The chosen token first, then the likeliest others: vLLM repeats the chosen one among
        them."""
        others = [
            (other.token_id, other.logprob)
            for other in content.top_logprobs
            if other.token_id != content.token_id
        ]
        return [(content.token_id, content.logprob), *others[: self._top]]


def _error(error: _Error) -> Exception:
    """The error of a stream, which has the status that a refusal would have had. One of the server
    itself, 500 or more, does not lie with the turn, which can be continued
    (`vllm/entrypoints/serve/exception_handling/error_response.py`)."""
    message = f"the inference server failed: {error.message}"
    if not isinstance(error.code, int):
        return EngineFailed(message)
    return EngineDied(message) if error.code >= 500 else Refused(error.code, error.message)


class VllmServer(UpdatableServerEngine):
    """The engine `vllm-server`."""

    def __init__(self, config: WorkerConfig) -> None:
        dialect = VllmDialect()
        super().__init__(config, dialect, dialect)


async def _require_interface(http: ServerHttp) -> None:
    """Raises Invalid if the server has no token interface, Refused if it refuses all requests."""
    try:
        await http.post(PATH, {})
    except Refused as refusal:
        if refusal.status in (403, 404, 405):
            raise Invalid(f"{http.url} has no token interface ({refusal}): {NEEDS}") from refusal
        if refusal.status not in (400, 422):  # those of an empty request
            raise


async def _base_model(http: ServerHttp) -> ListedModel:
    """The model of which all others are adapters."""
    for model in await list_models(http):
        if model.parent is None:
            return model
    raise Refused(200, "it serves no model")


async def _kv_endpoint(http: ServerHttp) -> str | None:
    """The address of the server's KV events, as it is reached from here. None: it publishes none;
    it has several ranks, each with a cache of its own; or the address is not its own (vLLM listens
    at one with `*`, and connects to any other: `distributed/kv_events.py`)."""
    try:
        sources: dict[str, _KvSource] = await http.json(
            "/kv_event_sources", kind=dict[str, _KvSource]
        )
    except Refused:
        return None
    endpoints = [
        source.endpoint
        for source in sources.values()
        if source.enable_kv_cache_events and source.publisher == "zmq"
    ]
    if len(sources) != 1 or len(endpoints) != 1 or _ANY_HOST not in endpoints[0]:
        return None
    return endpoints[0].replace(_ANY_HOST, event_host(http.url))


def _lacking(cache: Mapping[str, str], endpoint: str | None) -> dict[str, str]:
    """The features that the settings of a server exclude, and why. `cache`: its `CacheConfig`, as
    labels; `endpoint`: the address of its KV events."""
    lacking = {"retention": "vLLM evicts the least recently used blocks"}
    if not cache:
        reason = "its metrics are missing: start it without `--disable-log-stats`"
        return lacking | dict.fromkeys(("prefix_cache", "kv_events"), reason)
    if cache.get("enable_prefix_caching") != "True":
        return lacking | dict.fromkeys(("prefix_cache", "kv_events"), "prefix caching is off")
    if endpoint is None:
        lacking["kv_events"] = (
            "needs `--kv-events-config '{\"enable_kv_cache_events\": true}'`, an endpoint "
            "that begins with tcp://*, and one rank"
        )
    return lacking


def _labels(metrics: str, name: str) -> dict[str, str]:
    """The labels of the first sample of a metric."""
    for found, labels, _ in _SAMPLE.findall(metrics):
        if found == name:
            return dict(_LABEL.findall(labels))
    return {}


def _number(labels: Mapping[str, str], name: str) -> int | None:
    """The number in a label; None for a missing label, and for vLLM's own `None`."""
    value = labels.get(name, "")
    return int(value) if value.isdecimal() else None


def _values(metrics: str, name: str) -> list[float]:
    """A metric's samples, one for each rank."""
    return [float(value) for found, _, value in _SAMPLE.findall(metrics) if found == name]


def _sum(metrics: str, name: str) -> float:
    return sum(_values(metrics, name))


def _mean(metrics: str, name: str) -> float | None:
    """The mean of a metric's samples; None: not reported."""
    values = _values(metrics, name)
    return sum(values) / len(values) if values else None
