"""The token interface of SGLang (`POST /generate`), of 0.5.20 to 0.5.23.

Read in the wheels of 0.5.20 and 0.5.23, in `sglang/srt`; never run. The places:

- `managers/io_struct.py` (`GenerateReqInput`, which ignores unknown fields) and
  `sampling/sampling_params.py` (which refuses them);
- `managers/tokenizer_manager.py`: `_handle_batch_output` makes `output_ids` and `meta_info`,
  `_handle_abort_req` the event of an aborted request, which counts no prompt and may repeat an id;
- `managers/schedule_batch.py`: with `ignore_eos` no stop id ends a request, and without it the ids
  of the server's model do, too (`_check_token_based_finish`); a refused request has a prompt of one
  token (`set_finish_with_abort`);
- `managers/scheduler.py`: `/abort_request` ends every request with an id that begins as the one
  named (`abort_request`); an id that is in use is refused;
- `entrypoints/http_server.py`: errors of requests are events of a stream with the status 200;
  a closed connection ends the request;
- `disaggregation/kv_events.py`: KV events are vLLM's, with the salt in `cache_salt` of each event;
  blocks that are found again are not announced.

LoRA: a request names an adapter in `lora_path`; one that was never loaded is an error with the code
400 (`_resolve_lora_path`). The hashes of blocks differ by adapter, and events of 0.5.23 have its
name.
"""

from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import Raw, Struct
from typing_extensions import override

from schemas.control import VISION
from schemas.errors import EngineFailed, Invalid
from schemas.events import FinishReason
from services.runtime.config.stages import WorkerConfig
from services.tokenization.model_files import ModelFacts
from services.worker.engine import EngineDied, EngineRequest
from services.worker.engines.arguments import guided_arguments, integer_priority, limited_sampling
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
    Pulse,
    ServerFacts,
    TurnEnd,
    UpdatableServer,
    WeightsState,
    event_host,
    list_adapters,
    version_of,
)
from services.worker.engines.remote.engine import UpdatableServerEngine
from services.worker.engines.remote.http import Refused, ServerHttp

PATH = "/generate"
OLDEST = (0, 5, 20)
LEAST_BLOCK = 16
"""Blocks in tokens for the pages of 1 that SGLang often has: an index of single tokens would be
large, and a prompt's whole blocks are in the cache if all its pages are."""
_NAMES = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
}
"""SGLang's names of fields of `Sampling`, where they differ."""
_NEUTRAL: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
    "n": 1,
}
"""Sent where a request has no value: `--preferred-sampling-params` would replace it."""
_HALF_LOADED = "Rolling back"
"""In the error of an update that has begun: 0.5.23 "rolls back" to the new weights, since it has
noted their path (`model_runner_components/weight_updater.py`)."""
_WILDCARDS = ("*", "0.0.0.0", "::")


# -- the server's properties
# --------------------------------------------------------------------------------------------------


class _KvEvents(Struct):
    publisher: str
    endpoint_host: str
    endpoint_port_base: int
    dp_size: int


class _Scheduler(Struct):
    effective_max_running_requests_per_dp: int


class _ServerInfo(Struct):
    """`GET /server_info`: the arguments of the server, as they were resolved, and more."""

    version: str
    model_path: str
    served_model_name: str
    page_size: int
    max_req_input_len: int
    max_total_num_tokens: int
    internal_states: list[_Scheduler]
    startup_time: dict[str, Any] | None = None
    kv_events: _KvEvents | None = None
    dcp_size: int = 1
    is_embedding: bool = False
    skip_tokenizer_init: bool = False
    grammar_backend: str | None = None
    disable_radix_cache: bool = False
    disaggregation_mode: str = "null"
    enable_deterministic_inference: bool = False
    enable_priority_scheduling: bool = False
    enable_return_routed_experts: bool = False
    schedule_low_priority_values_first: bool = False
    speculative_algorithm: str | None = None
    speculative_eagle_topk: int | None = None
    speculative_num_steps: int | None = None
    speculative_num_draft_tokens: int | None = None

    @property
    def startup_s(self) -> float:
        """How long the start took, which no second start takes to the microsecond."""
        parts = self.startup_time or {}
        # The first is missing with several tokenizer processes.
        return sum(float(parts.get(name, 0.0)) for name in ("tokenizer_e2e", "scheduler_e2e"))

    @property
    def page(self) -> int:
        """Tokens in a page of the cache, over all ranks that share one."""
        return self.page_size * self.dcp_size

    @property
    def block_tokens(self) -> int:
        return self.page * -(-LEAST_BLOCK // self.page)

    @property
    def window(self) -> int:
        """The most tokens that prompt and output can have together. A turn beyond it is refused, or
        ends too early (`init_req_max_new_tokens`, `max_new_tokens_for_memory`)."""
        drafts = (self.speculative_eagle_topk or 0) * (self.speculative_num_steps or 0)
        reserved = max(drafts, self.speculative_num_draft_tokens or 0)
        held = self.max_total_num_tokens - 2 * self.page
        return min(self.max_req_input_len - reserved, held)


class _ModelInfo(Struct):
    weight_version: str


class _Tokenized(Struct):
    tokens: list[int]


class _Load(Struct):
    token_usage: float = 0.0
    total_prefill_uncached_tokens: int = 0
    total_prefill_busy_us: int = 0


class _Loads(Struct):
    loads: list[_Load]


# -- events of an answer
# --------------------------------------------------------------------------------------------------


class _LogProb(Struct, array_like=True):
    logprob: float | None
    """None: not a number in JSON, so that the token is impossible."""
    token_id: int


class _Finish(Struct):
    type: str
    matched: int | str | None = None
    message: str | None = None
    status_code: int | None = None


class _Meta(Struct):
    id: str
    finish_reason: _Finish | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    output_token_logprobs: list[_LogProb] | None = None
    output_top_logprobs: list[list[_LogProb] | None] | None = None
    weight_versions: list[LabeledSpan] | None = None
    routed_experts: Raw = NO_EXPERTS


class _Error(Struct):
    message: str
    code: int = 500


class _Event(Struct):
    output_ids: list[int] | None = None
    meta_info: _Meta | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Event).decode


# -- the dialect
# --------------------------------------------------------------------------------------------------


class SglangDialect(Dialect, UpdatableServer):
    """A server that `sglang serve` or `python -m sglang.launch_server` has started."""

    name = "sglang-server"
    shares_queued = False
    """Prompts of one batch are looked up before any of them is computed."""
    closes_streams = False
    experts_suffix = ".int32"
    weights_need = "a release of 0.5.20 or newer"

    @override
    async def describe(self, http: ServerHttp) -> ServerFacts:
        try:
            info: _ServerInfo = await http.json("/server_info", kind=_ServerInfo)
        except Refused as refusal:
            if refusal.status in (200, 404, 405):
                what = f"{http.url} is not an SGLang server of 0.5.20 or newer ({refusal})"
                raise Invalid(what, param="engine_url") from refusal
            raise
        _require_interface(http.url, info)
        lacking = _lacking(info)
        return ServerFacts(
            version=info.version,
            model=info.served_model_name,
            root=info.model_path,
            max_model_len=info.window,
            block_tokens=None if info.disable_radix_cache else info.block_tokens,
            kv_tokens=info.max_total_num_tokens,
            slots=sum(one.effective_max_running_requests_per_dp for one in info.internal_states),
            kv_endpoint=None if "kv_events" in lacking else _kv_endpoint(http.url, info),
            lacking=lacking,
            experts=info.enable_return_routed_experts,
        )

    @override
    async def tokenize(self, http: ServerHttp, server: ServerFacts, text: str) -> list[int] | None:
        info: _ServerInfo = await http.json("/server_info", kind=_ServerInfo)
        if info.skip_tokenizer_init:
            return None
        body = {"prompt": text, "add_special_tokens": False}
        answer: _Tokenized = await http.json("/tokenize", body, _Tokenized)
        return answer.tokens

    @override
    def generate(
        self, request: EngineRequest, ids: list[int], server: ServerFacts, model: ModelFacts
    ) -> Call:
        body: dict[str, Any] = {
            # Another one for each attempt, and no beginning of another one.
            "rid": f"{request.id}-{uuid4().hex}",
            "input_ids": ids,
            "sampling_params": _sampling(request, model),
            "stream": True,
        }
        if request.sampling.logprobs is not None:
            body["return_logprob"] = True
            body["top_logprobs_num"] = request.sampling.logprobs
        if request.cache_salt:
            body["cache_salt"] = request.cache_salt
        if request.adapter:
            body["lora_path"] = request.adapter
        if "priority" not in server.lacking:
            body["priority"] = integer_priority(request)
        if server.experts:
            body["return_routed_experts"] = True
        return Call(PATH, body)

    @override
    def reader(self, request: EngineRequest, call: Call) -> ChunkReader:
        return _SglangReader(call.body["rid"], request.sampling.logprobs)

    @override
    def streaming(self, http: ServerHttp) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    @override
    def abort(self, call: Call) -> Call | None:
        return Call("/abort_request", {"rid": call.body["rid"]})

    @override
    async def pulse(self, http: ServerHttp) -> Pulse:
        # The scheduler answers the first itself. `/health` would decode a token each time.
        info: _ServerInfo = await http.json("/server_info", kind=_ServerInfo)
        answer: _Loads = await http.json("/v1/loads?include=core", kind=_Loads)
        loads = answer.loads
        if len(loads) != len(info.internal_states):
            raise Refused(200, "the load of a rank is missing")
        return Pulse(
            started=info.startup_s,
            steps=sum(
                load.total_prefill_uncached_tokens + load.total_prefill_busy_us for load in loads
            ),
            kv_used=max((min(1.0, load.token_usage) for load in loads), default=None),
            adapters=await list_adapters(http),
        )

    # -- weights
    # ----------------------------------------------------------------------------------------------

    @override
    async def weights(self, http: ServerHttp) -> WeightsState | None:
        info: _ModelInfo = await http.json("/model_info", kind=_ModelInfo)
        paused = False
        try:
            await http.text("/ready")
        except Refused as refusal:
            if refusal.status not in (404, 503):
                raise
            paused = refusal.status == 503
        return WeightsState(version_of(info.weight_version), paused)

    @override
    async def pause(self, http: ServerHttp, *, abort: bool) -> None:
        # In place, turns would go on with the KV blocks of the old weights.
        mode = "abort" if abort else "retract"
        await http.post("/pause_generation", {"mode": mode}, PAUSE_S)

    @override
    async def resume(self, http: ServerHttp) -> None:
        await http.post("/continue_generation", {}, PAUSE_S)

    @override
    async def update_weights(self, http: ServerHttp, source: str, version: int) -> None:
        # If it cannot be flushed, as with a grammar that is being compiled, the update would fail
        # after the weights were loaded, with the old label.
        body = {"model_path": source, "weight_version": str(version), "flush_cache": False}
        try:
            await http.post("/update_weights_from_disk", body, UPDATE_S)
        except Refused as refusal:
            message = f"SGLang has not loaded the weights of {source}: {refusal}"
            if refusal.status == 400 and _HALF_LOADED not in str(refusal):
                raise EngineFailed(message) from refusal
            raise EngineDied(message) from refusal
        with suppress(Refused):
            await http.post("/flush_cache", {}, PAUSE_S)


class _SglangReader:
    """Reads events of both forms: with all ids of the turn so far, and with new ones only
    (`--incremental-streaming-output`)."""

    def __init__(self, request_id: str, top: int | None) -> None:
        self._id = request_id
        self._top = top or 0
        self._ids: list[int] = []
        self._repeats: bool | None = None
        """Whether each event has all ids; None: not known before the second event with ids."""

    def read(self, data: bytes) -> Chunk:
        try:
            event = _decode(data)
        except msgspec.DecodeError as error:
            raise BadAnswer(f"an event cannot be read: {error}") from error
        if event.error is not None:
            raise Refused(event.error.code, event.error.message)
        meta = event.meta_info
        if meta is None:
            raise BadAnswer("the counts of an event are missing")
        if meta.id != self._id:
            raise BadAnswer("an event belongs to another request")
        finish = meta.finish_reason
        if finish is not None and finish.type == "abort":
            # Not for this turn's own abort: the rest of that answer is not read. Another worker,
            # or this one later, can continue where the server gives no reason.
            raise Refused(finish.status_code or 503, finish.message or "it aborted the turn")
        return self._chunk(event.output_ids, meta)

    def _chunk(self, ids: list[int] | None, meta: _Meta) -> Chunk:
        if ids is None or meta.prompt_tokens is None or meta.completion_tokens is None:
            raise BadAnswer("token ids or their counts are missing")
        new = self._new_ids(ids, meta.completion_tokens)
        counts = Counts(meta.prompt_tokens, meta.completion_tokens)
        chunk = Chunk(new, counts=counts, cached=meta.cached_tokens)
        if meta.output_token_logprobs is not None:
            chunk.logprobs = self._logprobs(meta, len(new))
        if meta.finish_reason is not None:
            chunk.weights = meta.weight_versions
            chunk.experts = meta.routed_experts
            chunk.end = _turn_end(meta.finish_reason, chunk)
        return chunk

    def _new_ids(self, ids: list[int], total: int) -> list[int]:
        """The ids of an event that are new. `total`: the server's own count of all, which tells the
        forms apart; the judge compares it with what has arrived."""
        seen = len(self._ids)
        if seen and self._repeats is None:
            self._repeats = len(ids) == total
        if self._repeats:
            if len(ids) != total or ids[:seen] != self._ids:
                raise BadAnswer("it changed or dropped tokens that it had sent before")
            ids = ids[seen:]
        self._ids += ids
        return list(ids)

    def _logprobs(self, meta: _Meta, new: int) -> list[list[tuple[int, float]]]:
        """For each new id: the chosen token first, then the likeliest others."""
        chosen = meta.output_token_logprobs or []
        rows = meta.output_top_logprobs or [None] * len(chosen)
        if len(rows) != len(chosen) or len(chosen) < new:
            raise BadAnswer("log probabilities are missing")
        start = len(chosen) - new
        return [
            self._pairs(one, row) for one, row in zip(chosen[start:], rows[start:], strict=True)
        ]

    def _pairs(self, chosen: _LogProb, row: list[_LogProb] | None) -> list[tuple[int, float]]:
        others = [_pair(other) for other in row or () if other.token_id != chosen.token_id]
        return [_pair(chosen), *others[: self._top]]


class SglangServer(UpdatableServerEngine):
    """The engine `sglang-server`."""

    def __init__(self, config: WorkerConfig) -> None:
        dialect = SglangDialect()
        super().__init__(config, dialect, dialect)


# -- pure parts
# --------------------------------------------------------------------------------------------------


def _sampling(request: EngineRequest, model: ModelFacts) -> dict[str, Any]:
    """SGLang's `sampling_params`. Raises Invalid for stop ids beside `ignore_eos`."""
    if request.sampling.ignore_eos and request.stop_ids:
        raise Invalid("SGLang honours no stop tokens with ignore_eos", param="ignore_eos")
    values = limited_sampling(request, model.sampling)
    values.pop("logprobs", None)
    arguments = _NEUTRAL | {_NAMES.get(name, name): value for name, value in values.items()}
    arguments["top_k"] = arguments["top_k"] or -1
    grammar = _grammar(request)
    return (
        arguments
        | grammar
        | {
            "stop_token_ids": list(request.stop_ids),
            # Without stop ids nothing but the length ends a turn, or the end of a grammar.
            "ignore_eos": not request.stop_ids and not grammar,
        }
    )


def _grammar(request: EngineRequest) -> dict[str, str]:
    form = guided_arguments(request)
    if form is None:
        return {}
    if "grammar" in form:
        # With llguidance this takes Lark (`dispatch_ebnf`).
        return {"ebnf": form["grammar"]}
    schema = form.get("json", {"type": "object"})
    return {"json_schema": msgspec.json.encode(schema).decode()}


def _turn_end(finish: _Finish, chunk: Chunk) -> TurnEnd:
    """Why the turn ended. The token at which it stopped, the chunk's last one, is taken out of the
    chunk."""
    if finish.type == "length":
        return TurnEnd(FinishReason.LENGTH)
    if finish.type != "stop" or not isinstance(finish.matched, int):
        raise EngineFailed(f"SGLang ended the turn: {finish.type} {finish.matched or ''}".rstrip())
    if chunk.ids[-1:] != [finish.matched]:
        raise BadAnswer(f"it stopped at token {finish.matched}, which is not the last one")
    logprobs = chunk.logprobs.pop() if chunk.logprobs else None
    return TurnEnd(FinishReason.STOP, chunk.ids.pop(), logprobs)


def _pair(entry: _LogProb) -> tuple[int, float]:
    return entry.token_id, float("-inf") if entry.logprob is None else entry.logprob


def _lacking(info: _ServerInfo) -> dict[str, str]:
    """The features that the settings of a server exclude, and why."""
    lacks = {
        "retention": "SGLang takes no retention of prompts",
        VISION: "SGLang decodes a prompt with images to text, and encodes that again",
    }
    if not info.enable_deterministic_inference:
        lacks["seed"] = "needs `--enable-deterministic-inference`: SGLang ignores it otherwise"
    if not info.enable_priority_scheduling:
        lacks["priority"] = "needs `--enable-priority-scheduling`"
    elif info.schedule_low_priority_values_first:
        lacks["priority"] = "`--schedule-low-priority-values-first` is set"
    if info.grammar_backend != "llguidance":
        lacks["grammar"] = "needs `--grammar-backend llguidance`"
    if info.grammar_backend == "none":
        lacks["guided"] = "`--grammar-backend none` is set"
    if info.skip_tokenizer_init:
        lacks |= dict.fromkeys(
            ("guided", "grammar", "min_tokens"), "`--skip-tokenizer-init` is set"
        )
    reason = _lacks_events(info)
    if reason is not None:
        lacks["kv_events"] = reason
    if info.disable_radix_cache:
        lacks |= dict.fromkeys(("prefix_cache", "kv_events"), "prefix caching is off")
    return lacks


def _lacks_events(info: _ServerInfo) -> str | None:
    """Why a server has no KV events that can be used; None: it has."""
    events = info.kv_events
    if events is None or events.publisher != "zmq":
        return 'needs `--kv-events-config \'{"publisher": "zmq", "endpoint": "tcp://*:5557"}\'`'
    if events.endpoint_host not in _WILDCARDS:
        return "needs an endpoint of all addresses in `--kv-events-config`, such as tcp://*:5557"
    if events.dp_size != 1:
        return "it has several data-parallel ranks, each with a cache of its own"
    if info.block_tokens != info.page:
        return f"needs `--page-size {LEAST_BLOCK}` or more: it has {info.page}"
    if info.speculative_algorithm is not None:
        return "with speculative decoding its blocks may hold pairs of tokens"
    return None


def _kv_endpoint(url: str, info: _ServerInfo) -> str:
    assert info.kv_events is not None
    return f"tcp://{event_host(url)}:{info.kv_events.endpoint_port_base}"


def _require_interface(url: str, info: _ServerInfo) -> None:
    """Raises Invalid if the server is too old, or decodes no turns of its own."""
    release = tuple(int(part) for part in info.version.split(".")[:3] if part.isdecimal())
    if release < OLDEST:
        raise Invalid(f"{url} is SGLang {info.version}; 0.5.20 or newer is needed")
    if info.is_embedding:
        raise Invalid(f"{url} serves embeddings", param="engine_url")
    if info.disaggregation_mode != "null":
        raise Invalid(
            f"{url} is one side ({info.disaggregation_mode}) of a split server: a turn needs both",
            param="engine_url",
        )
